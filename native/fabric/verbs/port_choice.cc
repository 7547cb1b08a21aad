#include "fabric/verbs/port_choice.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <tuple>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

constexpr uint16_t kFullMember = 0x8000;

std::string StateName(const ibv_port_attr& attributes) {
  constexpr const char* kStates[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  constexpr const char* kPhysicalStates[] = {
      "unknown",           "Sleep",  "Polling", "Disabled", "PortConfigurationTraining", "LinkUp",
      "LinkErrorRecovery", "PhyTest"};
  const size_t state = static_cast<size_t>(attributes.state);
  const size_t physical = attributes.phys_state;
  return std::string(state < std::size(kStates) ? kStates[state] : "in an unknown state") +
         " (physical state " +
         (physical < std::size(kPhysicalStates) ? kPhysicalStates[physical] : "unknown") + ")";
}

std::string StateHint(const PortCandidate& candidate) {
  if (candidate.ethernet()) {
    return "set its network interface up (rdma link shows which it is), and see the cable";
  }
  if (candidate.attributes.state == IBV_PORT_DOWN) return "see the cable and the switch";
  return "the fabric needs a subnet manager (such as opensm)";
}

struct Encoded {
  int code;
  double value;
};
constexpr Encoded kLanes[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
constexpr Encoded kLaneRates[] = {  // Gb/s
    {1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}, {256, 200}};

// Unknown codes are used as they are.
template <size_t kCount>
double Decoded(int code, const Encoded (&table)[kCount]) {
  const auto* const found = std::find_if(std::begin(table), std::end(table),
                                         [code](const Encoded& row) { return row.code == code; });
  return found == std::end(table) ? code : found->value;
}

std::string RateText(double rate) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g Gb/s", rate);
  return text;
}

bool IsLinkLocal(const Gid& gid) {
  return gid.bytes.raw[0] == 0xfe && (gid.bytes.raw[1] & 0xc0) == 0x80;
}

// Lower is better. RoCE v2 packets can be routed, and most networks are set up for IPv4 addresses.
// Link-local addresses work only within a subnet.
std::tuple<bool, int, uint32_t> Preference(const Gid& gid) {
  return {gid.type == GidType::kRoceV1,
          IsIpv4(gid.bytes.raw) ? 0
          : IsLinkLocal(gid)    ? 2
                                : 1,
          gid.index};
}

// Whether routers of InfiniBand know it. Ports of one subnet reach each other by it as well.
bool Routed(const Gid& gid) { return RouterLid(gid.bytes.raw) != 0; }

std::string GidList(const std::vector<Gid>& gids) {
  constexpr size_t kMaxShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(gids.size(), kMaxShown); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(gids[i].index) + " (" +
            GidTypeName(gids[i].type) + ", " + gids[i].Text() + ")";
  }
  if (gids.size() > kMaxShown) text += " and " + std::to_string(gids.size() - kMaxShown) + " more";
  return text;
}

// Leaves those in the range of the settings.
Status KeepRange(const std::string& text, std::vector<Gid>* gids) {
  GidRange range;
  if (!ParseGidRange(text, &range)) {
    return Status(Code::kInvalidArgument, "RDMA_TRANSPORT_GID_RANGE=" + text +
                                              " is not a subnet such as 10.7.0.0/16 or ::/0");
  }
  const std::string all = GidList(*gids);
  gids->erase(std::remove_if(gids->begin(), gids->end(),
                             [&](const Gid& gid) {
                               // An IPv4 address is none of IPv6.
                               return !range.Has(gid) ||
                                      IsIpv4(gid.bytes.raw) != IsIpv4(range.first.raw);
                             }),
              gids->end());
  if (!gids->empty() || all.empty()) return OkStatus();
  return Status(Code::kInvalidArgument,
                "RDMA_TRANSPORT_GID_RANGE=" + text + " has none of its GIDs; there are " + all);
}

Status ChooseGid(const PortCandidate& candidate, const VerbsSettings& settings, Gid* gid) {
  const int index = settings.gid_index;
  std::vector<Gid> gids = candidate.gids;
  if (candidate.ethernet() && index < 0 && !settings.gid_range.empty()) {
    RDMA_RETURN_IF_ERROR(KeepRange(settings.gid_range, &gids));
  }
  if (gids.empty()) {
    return Status(Code::kFailedPrecondition,
                  std::string("it has no usable GID") +
                      (candidate.ethernet() ? ": its network interface needs an IP address" : ""));
  }
  if (index >= 0) {
    const auto found = std::find_if(gids.begin(), gids.end(), [&](const Gid& entry) {
      return entry.index == static_cast<uint32_t>(index);
    });
    if (found == gids.end()) {
      const int length = candidate.attributes.gid_tbl_len;
      return Status(
          Code::kInvalidArgument,
          "RDMA_TRANSPORT_GID_INDEX=" + std::to_string(index) +
              (index >= length ? " is beyond its table of " + std::to_string(length) + " entries"
                               : std::string(" is an empty entry")) +
              "; there are " + GidList(gids));
    }
    *gid = *found;
    return OkStatus();
  }
  *gid = candidate.ethernet()
             ? *std::min_element(
                   gids.begin(), gids.end(),
                   [](const Gid& a, const Gid& b) { return Preference(a) < Preference(b); })
             : *std::min_element(gids.begin(), gids.end(),
                                 [](const Gid& a, const Gid& b) { return Routed(a) > Routed(b); });
  return OkStatus();
}

std::string PkeyText(uint16_t pkey) {
  char text[8];
  std::snprintf(text, sizeof(text), "0x%04x", pkey);
  return text;
}

// Prefers full membership, because two limited members of a partition cannot reach each other.
Status ChoosePkey(const PortCandidate& candidate, int wanted, uint16_t* index) {
  const std::vector<uint16_t>& pkeys = candidate.pkeys;
  for (const bool full : {true, false}) {
    for (size_t i = 0; i < pkeys.size(); ++i) {
      const int key = pkeys[i] & ~kFullMember;
      if (key == 0 || ((pkeys[i] & kFullMember) != 0) != full) continue;
      if (wanted >= 0 && key != (wanted & ~kFullMember)) continue;
      *index = static_cast<uint16_t>(i);
      return OkStatus();
    }
  }
  // RoCE has only the default partition, and not every driver lists it.
  if (wanted < 0) {
    *index = 0;
    return OkStatus();
  }
  std::string there;
  for (const uint16_t pkey : pkeys) {
    if ((pkey & ~kFullMember) != 0) there += (there.empty() ? "" : ", ") + PkeyText(pkey);
  }
  return Status(Code::kInvalidArgument,
                "RDMA_TRANSPORT_PKEY=" + PkeyText(static_cast<uint16_t>(wanted)) +
                    " is not in its table; there are " + (there.empty() ? "none" : there));
}

ibv_mtu ChooseMtu(ibv_mtu active, uint32_t wanted) {
  ibv_mtu mtu = active;
  while (wanted != 0 && mtu > IBV_MTU_256 && MtuBytes(mtu) > wanted) {
    mtu = static_cast<ibv_mtu>(mtu - 1);
  }
  return mtu;
}

Status Examine(const PortCandidate& candidate) {
  if (!HasReliableConnections(candidate.transport)) {
    return Status(Code::kUnimplemented,
                  "it has no reliable connections (RC), as iWARP, usNIC and EFA have none");
  }
  RDMA_RETURN_IF_ERROR(candidate.problem);
  if (candidate.attributes.state != IBV_PORT_ACTIVE) {
    return Status(Code::kFailedPrecondition,
                  "port is " + StateName(candidate.attributes) + "; " + StateHint(candidate));
  }
  return OkStatus();
}

struct Usable {
  PortChoice choice;
  int place = 0;
  double rate = 0;
  bool far = false;

  bool Before(const Usable& other) const {
    return std::tuple(place, -rate, far, choice.candidate) <
           std::tuple(other.place, -other.rate, other.far, other.choice.candidate);
  }
};

// Returns why a usable port is not used together with the best one, or an empty string. The ports
// of a task carry equal shares of large transfers.
std::string WhyNotWith(const PortCandidate& port, const Usable& usable, const PortCandidate& first,
                       const Usable& best) {
  if (port.ethernet() != first.ethernet()) {
    return "on another kind of network than " + first.Name();
  }
  if (usable.rate != best.rate) {
    return (usable.rate < best.rate ? "slower than " : "faster than ") + first.Name() + " (" +
           RateText(usable.rate) + ", not " + RateText(best.rate) + ")" +
           (usable.place != best.place ? ", which comes first in RDMA_TRANSPORT_DEVICES" : "");
  }
  return std::string();
}

std::string NamesOf(const std::vector<PortCandidate>& candidates) {
  std::string names;
  for (const PortCandidate& candidate : candidates) {
    names += (names.empty() ? "" : ", ") + candidate.Name();
  }
  return names;
}

// Returns the entries of the list that match no port.
std::vector<std::string> MissingEntries(const std::vector<PortCandidate>& candidates,
                                        const host::DeviceList& list) {
  std::vector<std::string> missing;
  if (list.all_but) return missing;
  for (const host::DeviceList::Entry& entry : list.entries) {
    const bool found =
        std::any_of(candidates.begin(), candidates.end(), [&](const PortCandidate& candidate) {
          const int port = candidate.number == 0 ? entry.port : candidate.number;
          return list.Names(entry, candidate.device, port);
        });
    if (!found) missing.push_back(entry.Text());
  }
  return missing;
}

}  // namespace

// As in NCCL, whose net_ib takes XDR from active_speed_ex.
double GigabitsPerSecond(const PortCandidate& port) {
  const int speed =
      port.speed_ex != 0 ? static_cast<int>(port.speed_ex) : port.attributes.active_speed;
  return Decoded(port.attributes.active_width, kLanes) * Decoded(speed, kLaneRates);
}

Status ChooseUse(const PortCandidate& candidate, const VerbsSettings& settings,
                 PortChoice* choice) {
  RDMA_RETURN_IF_ERROR(Examine(candidate));
  RDMA_RETURN_IF_ERROR(ChooseGid(candidate, settings, &choice->gid));
  RDMA_RETURN_IF_ERROR(ChoosePkey(candidate, settings.pkey, &choice->pkey_index));
  choice->mtu = ChooseMtu(candidate.attributes.active_mtu, settings.mtu);
  return OkStatus();
}

void KeepGid(const PortCandidate& candidate, const Gid& present, Gid* gid) {
  const auto kind = [](const Gid& one) {
    return std::pair(std::get<0>(Preference(one)), std::get<1>(Preference(one)));
  };
  const auto found = std::find_if(candidate.gids.begin(), candidate.gids.end(),
                                  [&](const Gid& entry) { return entry.SameAs(present); });
  if (found != candidate.gids.end() && kind(*found) == kind(*gid)) *gid = *found;
}

std::vector<size_t> ChooseStandby(const std::vector<PortCandidate>& candidates,
                                  const host::DeviceList& list, const PortCandidate& best,
                                  size_t most) {
  std::vector<std::pair<int, size_t>> found;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const PortCandidate& candidate = candidates[i];
    const int place = candidate.number == 0 ? -1 : list.Place(candidate.device, candidate.number);
    if (place < 0 || !candidate.problem.ok() || candidate.ethernet() != best.ethernet()) continue;
    if (!HasReliableConnections(candidate.transport)) continue;
    const bool active = candidate.attributes.state == IBV_PORT_ACTIVE;
    if (!active || candidate.gids.empty()) found.emplace_back(place, i);
  }
  std::sort(found.begin(), found.end());
  if (found.size() > most) found.resize(most);
  std::vector<size_t> standby;
  for (const auto& [place, i] : found) standby.push_back(i);
  return standby;
}

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << static_cast<int>(mtu); }

Status ChooseAmong(const std::vector<PortCandidate>& candidates, const host::DeviceList& list,
                   const VerbsSettings& settings, std::vector<PortChoice>* choices,
                   std::vector<std::string>* left_out) {
  std::vector<Usable> usable;
  std::vector<std::string> sentences(candidates.size());
  std::vector<Code> codes;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const PortCandidate& candidate = candidates[i];
    Usable one;
    one.choice.candidate = i;
    if (candidate.number == 0 ? !list.MayUse(candidate.device)
                              : list.Place(candidate.device, candidate.number) < 0) {
      sentences[i] = std::string(list.all_but ? "left out by" : "not in") +
                     " RDMA_TRANSPORT_DEVICES=" + settings.devices;
      continue;
    }
    const Status status = ChooseUse(candidate, settings, &one.choice);
    if (!status.ok()) {
      sentences[i] = status.message();
      codes.push_back(status.code());
      continue;
    }
    one.place = list.Place(candidate.device, candidate.number);
    one.rate = GigabitsPerSecond(candidate);
    one.far = candidate.far;
    usable.push_back(std::move(one));
  }
  std::sort(usable.begin(), usable.end(),
            [](const Usable& a, const Usable& b) { return a.Before(b); });
  for (const Usable& one : usable) {
    const PortCandidate& best = candidates[usable.front().choice.candidate];
    std::string& sentence = sentences[one.choice.candidate];
    sentence = WhyNotWith(candidates[one.choice.candidate], one, best, usable.front());
    if (sentence.empty() && choices->size() == kMaxPorts) {
      sentence = "a task uses at most " + std::to_string(kMaxPorts) + " ports";
    }
    if (sentence.empty()) choices->push_back(one.choice);
  }
  std::string all;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (sentences[i].empty()) continue;
    left_out->push_back(candidates[i].Name() + ": " + sentences[i]);
    all += "\n  " + left_out->back();
  }
  const std::vector<std::string> missing = MissingEntries(candidates, list);
  for (const std::string& name : missing) {
    left_out->push_back(name + ": named by RDMA_TRANSPORT_DEVICES, but there is no such port here");
    all += "\n  " + left_out->back();
  }
  if (!usable.empty()) return OkStatus();
  if (codes.empty()) {  // the list excludes every port of this host
    const std::string what = "RDMA_TRANSPORT_DEVICES=" + settings.devices;
    const std::string there = "; there are " + NamesOf(candidates);
    if (list.all_but) {
      return Status(Code::kFailedPrecondition, what + " leaves out every port" + there);
    }
    return Status(Code::kNotFound, what + " names no port of this host" + there);
  }
  const bool same =
      std::all_of(codes.begin(), codes.end(), [&](Code code) { return code == codes.front(); });
  return Status(same ? codes.front() : Code::kFailedPrecondition,
                "no RDMA port can be used:" + all);
}

}  // namespace rdma_transport::fabric::verbs
