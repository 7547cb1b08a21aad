// Channels over rails that behave like cards: bytes come late, nothing orders one rail to another,
// and a rail that breaks loses what was on its way.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device_pair.h"
#include "fabric/striped/device.h"
#include "faulty_fabric/device.h"
#include "loopback_fabric/device.h"

namespace rdma_transport::fabric::striped {
namespace {

using testing::Fault;
using testing::Faults;
using testing::FaultyDevice;
using testing::LoopbackDevice;
using testing::Recorder;
using testing::Side;
using testing::Violations;

constexpr uint64_t kSlot = 48 << 10;
constexpr uint64_t kSlots = 16;

// A direction: what was sent, and what of it has come.
struct Way {
  struct Note {
    enum class Kind { kEverything, kWrite, kNothing } kind = Kind::kNothing;
    uint64_t write = 0;          // its slot is checked when it comes
    uint64_t writes_before = 0;  // that were begun before it
    uint64_t follows = 0;        // the last one before it that follows everything, or 0
  };
  struct Written {
    uint64_t slot = 0;
    uint64_t length = 0;
    bool checked = false;
    bool ended = false;
  };

  static char ValueOf(uint64_t write) { return static_cast<char>(write % 100 + 1); }
  static char Checked(uint64_t write) { return static_cast<char>(write % 100 + 101); }

  Side* from = nullptr;
  Side* to = nullptr;
  std::unique_ptr<Region> local;       // at `from`
  std::unique_ptr<Region> remote;      // at `to`
  std::vector<Note> notes = {Note()};  // from 1 on
  std::vector<Written> writes = {Written()};
  std::set<uint64_t> unannounced;  // writes without a notification of their own
  std::deque<uint64_t> free;       // slots
  std::set<uint64_t> came;
  uint64_t last_ordered = 0;
  size_t seen = 0;                     // of the receiver's notes
  std::map<uint64_t, uint64_t> reads;  // cookie and slot that must have this value
};

class Striped : public testing::DevicePairTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr uint64_t kReads = uint64_t{1} << 32;  // cookies of reads

  void Open(size_t rails, const Faults& faults, Nanos peer_timeout = 30 * kSecond) {
    for (Side* side : {&a_, &b_}) {
      std::vector<std::unique_ptr<Device>> devices;
      for (size_t i = 0; i < rails; ++i) {
        Faults own = faults;
        own.seed = faults.seed * 16 + rails_[side].size();
        std::unique_ptr<Device> inner;
        ASSERT_TRUE(LoopbackDevice::Create(Settings(), &inner).ok());
        auto faulty = std::make_unique<FaultyDevice>(std::move(inner), own);
        rails_[side].push_back(faulty.get());
        devices.push_back(std::move(faulty));
      }
      StripedSettings settings;
      settings.peer_timeout = peer_timeout;
      ASSERT_TRUE(
          StripedDevice::Create("striped", std::move(devices), settings, &side->device).ok());
    }
    ASSERT_NO_FATAL_FAILURE(Connect());
    Begin(&there_, &a_, &b_);
    Begin(&back_, &b_, &a_);
  }
  static Faults Nasty(uint64_t seed) {
    Faults faults;
    faults.seed = seed;
    faults.card = true;
    faults.pace = {4096, 16384, 16384};
    faults.chance(Fault::kLate) = 2000;
    faults.chance(Fault::kShortPoll) = 500;
    faults.chance(Fault::kPlaceLate) = 6000;
    return faults;
  }
  void Begin(Way* way, Side* from, Side* to) {
    way->from = from;
    way->to = to;
    way->local = Allocate(*from);
    way->remote = Shared(*to);
    std::memset(way->local->address(), 0, way->local->length());
    std::memset(way->remote->address(), 0, way->remote->length());
    for (uint64_t i = 0; i < kSlots; ++i) way->free.push_back(i);
    there_.seen = b_.handler->notes.size();
    back_.seen = a_.handler->notes.size();
  }
  void TearDown() override {
    Drop();
    for (Way* way : {&there_, &back_}) {
      way->local.reset();
      way->remote.reset();
    }
    a_.device.reset();
    b_.device.reset();
    EXPECT_EQ(Violations::Take(), std::vector<std::string>());
  }

  void Write(Way* way) {
    if (way->free.empty()) return;
    const uint64_t slot = way->free.front();
    way->free.pop_front();
    const uint64_t length = random_() % 3 == 0 ? kSlot - random_() % 100 : 1 + random_() % 3000;
    const uint64_t write = way->writes.size();
    char* const from = way->local->address() + slot * kSlot;
    std::memset(from, Way::ValueOf(write), length);
    ASSERT_TRUE(
        way->from->channel->Write(from, {way->remote->key(), slot * kSlot, length}, write).ok());
    way->writes.push_back({slot, length});
    way->unannounced.insert(write);
  }
  void Notify(Way* way) {
    Way::Note note;
    note.follows = way->last_ordered;
    note.writes_before = way->writes.size() - 1;
    After after = After::Nothing();
    const uint64_t kind = random_() % 4;
    if (kind != 0 && !way->unannounced.empty()) {
      note.write = *std::next(way->unannounced.begin(),
                              static_cast<ptrdiff_t>(random_() % way->unannounced.size()));
      way->unannounced.erase(note.write);
      note.kind = Way::Note::Kind::kWrite;
      after = After::Write(note.write);
    }
    if (kind == 1) {
      note.kind = Way::Note::Kind::kEverything;
      after = After::Everything();
    }
    const std::string text = std::to_string(way->notes.size()) + std::string(random_() % 50, '.');
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    const Urgency urgency = random_() % 2 == 0 ? Urgency::kWake : Urgency::kLazy;
    ASSERT_TRUE(way->from->channel->Notify(&part, 1, urgency, nullptr, after).ok());
    if (kind == 1) way->last_ordered = way->notes.size();
    way->notes.push_back(note);
  }
  // Reads what the peer has written into its own memory.
  void Read(Way* way) {
    const uint64_t cookie = kReads + ++last_read_;
    const uint64_t at = kSlots + random_() % 8;  // slots that nobody writes
    if (way->reads.size() >= 4) return;
    const auto place = static_cast<uint64_t>(kSlots + 8 + last_read_ % 8);
    for (const auto& [other, slot] : way->reads) {
      if (slot == place) return;
    }
    const uint64_t length = random_() % 2 == 0 ? kSlot : 1 + random_() % 1000;
    std::memset(way->local->address() + place * kSlot, 0, kSlot);
    std::memset(way->remote->address() + at * kSlot, static_cast<int>(at), kSlot);
    ASSERT_TRUE(way->from->channel
                    ->Read({way->remote->key(), at * kSlot, length},
                           way->local->address() + place * kSlot, cookie)
                    .ok());
    way->reads[cookie] = place;
    read_[cookie] = {at, length};
  }

  void ExpectValue(const Way& way, uint64_t write, char value) {
    const auto& [slot, length, checked, ended] = way.writes[write];
    const char* bytes = way.remote->address() + slot * kSlot;
    ASSERT_EQ(std::count(bytes, bytes + length, value), static_cast<std::ptrdiff_t>(length))
        << "write " << write << " of " << length << " bytes";
  }
  // Checks what has come since the last call.
  void CheckNotes(Way* way) {
    const auto& heard = way->to->handler->notes;
    for (; way->seen < heard.size(); ++way->seen) {
      const uint64_t number = std::strtoull(heard[way->seen].c_str(), nullptr, 10);
      ASSERT_TRUE(number > 0 && number < way->notes.size()) << heard[way->seen];
      const Way::Note& note = way->notes[number];
      ASSERT_TRUE(way->came.insert(number).second) << number << " came twice";
      const auto all_to = [&](uint64_t last) {
        return static_cast<uint64_t>(
                   std::distance(way->came.begin(), way->came.upper_bound(last))) >= last;
      };
      const bool everything = note.kind == Way::Note::Kind::kEverything;
      ASSERT_TRUE(all_to(everything ? number - 1 : note.follows)) << number << " came too early";
      if (everything) {
        for (uint64_t write = 1; write <= note.writes_before; ++write) {
          if (!way->writes[write].checked) {
            ASSERT_NO_FATAL_FAILURE(ExpectValue(*way, write, Way::ValueOf(write)));
          }
        }
      }
      if (note.write == 0) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectValue(*way, note.write, Way::ValueOf(note.write)));
      // From here on the memory is used for something else.
      Way::Written& written = way->writes[note.write];
      std::memset(way->remote->address() + written.slot * kSlot, Way::Checked(note.write),
                  written.length);
      written.checked = true;
      to_free_.emplace_back(way, note.write);
    }
  }
  // A slot is used again when its write has been checked and has ended.
  void CheckEnds(Way* way, size_t* told) {
    const auto& ended = way->from->handler->transfers;
    for (; *told < ended.size(); ++*told) {
      const auto& [cookie, status] = ended[*told];
      ASSERT_TRUE(status.ok()) << status.message();
      if (cookie < kReads) {
        ASSERT_FALSE(std::exchange(way->writes[cookie].ended, true)) << "ended twice";
        // The source may change.
        std::memset(way->local->address() + way->writes[cookie].slot * kSlot, 0xee,
                    way->writes[cookie].length);
        continue;
      }
      ASSERT_EQ(way->reads.count(cookie), 1u) << "ended twice";
      const char* bytes = way->local->address() + way->reads[cookie] * kSlot;
      const auto [value, length] = read_[cookie];
      ASSERT_EQ(std::count(bytes, bytes + length, static_cast<char>(value)),
                static_cast<std::ptrdiff_t>(length));
      way->reads.erase(cookie);
    }
  }
  void Check() {
    ASSERT_NO_FATAL_FAILURE(CheckNotes(&there_));
    ASSERT_NO_FATAL_FAILURE(CheckNotes(&back_));
    ASSERT_NO_FATAL_FAILURE(CheckEnds(&there_, &told_by_a_));
    ASSERT_NO_FATAL_FAILURE(CheckEnds(&back_, &told_by_b_));
    for (auto it = to_free_.begin(); it != to_free_.end();) {
      auto& [way, write] = *it;
      if (!way->writes[write].ended) {
        ++it;
        continue;
      }
      // What was checked stays as it is.
      ASSERT_NO_FATAL_FAILURE(ExpectValue(*way, write, Way::Checked(write)));
      way->free.push_back(way->writes[write].slot);
      it = to_free_.erase(it);
    }
  }
  void Step() {
    Way* const way = random_() % 2 == 0 ? &there_ : &back_;
    switch (random_() % 4) {
      case 0:
        return Write(way);
      case 1:
      case 2:
        return Notify(way);
      default:
        return Read(way);
    }
  }
  // Until nothing is under way.
  void Settle() {
    for (Way* way : {&there_, &back_}) {
      while (!way->unannounced.empty()) ASSERT_NO_FATAL_FAILURE(Notify(way));
    }
    const auto idle = [&](const Way& way) {
      return way.came.size() + 1 == way.notes.size() && way.reads.empty() &&
             way.free.size() == kSlots;
    };
    const bool all = PollUntil([&] {
      Check();
      return HasFatalFailure() || a_.handler->closed || b_.handler->closed ||
             (idle(there_) && idle(back_));
    });
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
    ASSERT_FALSE(b_.handler->closed) << b_.handler->reason.message();
    ASSERT_TRUE(all) << there_.came.size() << " of " << there_.notes.size() - 1 << " and "
                     << back_.came.size() << " of " << back_.notes.size() - 1 << " came; "
                     << there_.free.size() << " and " << back_.free.size() << " slots";
    EXPECT_TRUE(PollUntil([&] {
      return a_.handler->delivered >= there_.notes.size() - 1 &&
             b_.handler->delivered >= back_.notes.size() - 1;
    }));
  }
  void Break(Side* side, size_t rail) {
    rails_[side][rail]->BreakAll(Status(Code::kUnavailable, "the cable was cut"));
  }

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
  std::map<Side*, std::vector<FaultyDevice*>> rails_;
  Way there_;
  Way back_;
  size_t told_by_a_ = 0;
  size_t told_by_b_ = 0;
  std::vector<std::pair<Way*, uint64_t>> to_free_;
  uint64_t last_read_ = 0;
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> read_;  // value and length, by cookie
};

TEST_P(Striped, WritesAreVisibleBeforeWhatFollowsThem) {
  ASSERT_NO_FATAL_FAILURE(Open(1 + GetParam() % 3, Nasty(GetParam())));
  for (int round = 0; round < 2000 && !HasFatalFailure(); ++round) {
    Step();
    if (random_() % 2 == 0) Poll();
    Check();
  }
  ASSERT_FALSE(HasFatalFailure());
  Settle();
}

TEST_P(Striped, RailsMayFailAtAnyMoment) {
  ASSERT_NO_FATAL_FAILURE(Open(3, Nasty(GetParam())));
  std::vector<size_t> left = {0, 1, 2};
  for (int round = 0; round < 1500 && !HasFatalFailure(); ++round) {
    Step();
    if (random_() % 2 == 0) Poll();
    Check();
    if (random_() % 300 != 0 || left.size() == 1) continue;
    const size_t which = random_() % left.size();
    Break(random_() % 2 == 0 ? &a_ : &b_, left[which]);
    left.erase(left.begin() + static_cast<ptrdiff_t>(which));
  }
  ASSERT_FALSE(HasFatalFailure());
  Settle();
}

TEST_P(Striped, RailsReturnAndMayFailAgain) {
  constexpr long kRails = 3;
  ASSERT_NO_FATAL_FAILURE(Open(kRails, Nasty(GetParam())));
  const auto all_up = [&] {
    return std::all_of(rails_.begin(), rails_.end(), [](const auto& side) {
      const std::string route = side.first->channel->Route();
      return std::count(route.begin(), route.end(), ',') == kRails - 1;
    });
  };
  for (int failure = 0; failure < 6; ++failure) {
    SCOPED_TRACE(failure);
    std::vector<std::pair<Side*, size_t>> down;
    const size_t spared = random_() % kRails;
    for (int round = 0; round < 300; ++round) {
      ASSERT_NO_FATAL_FAILURE(Step());
      if (random_() % 2 == 0) Poll();
      ASSERT_NO_FATAL_FAILURE(Check());
      const size_t rail = random_() % kRails;
      if (round < 100 || random_() % 60 != 0 || rail == spared) continue;
      Side* const side = random_() % 2 == 0 ? &a_ : &b_;
      if (random_() % 2 == 0) Break(side, rail);
      rails_[side][rail]->set_active(false);
      down.emplace_back(side, rail);
    }
    if (random_() % 2 == 0) {
      ASSERT_NO_FATAL_FAILURE(Settle());
    }
    for (const auto& [side, rail] : down) rails_[side][rail]->set_active(true);
    ASSERT_TRUE(PollUntil([&] { return BothClosed() || all_up(); }))
        << a_.channel->Route() << " and " << b_.channel->Route();
    ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
  }
  ASSERT_NO_FATAL_FAILURE(Settle());
}

// What is sent afterwards waits for it, until the peer declines it.
TEST_P(Striped, ARailMayFailWhileItIsOffered) {
  ASSERT_NO_FATAL_FAILURE(Open(2, Nasty(GetParam())));
  const auto uses_one = [](const Side& side) {
    return side.channel->Route().find(',') == std::string::npos;
  };
  for (Side* side : {&a_, &b_}) rails_[side][1]->set_active(false);
  ASSERT_TRUE(PollUntil([&] { return uses_one(a_) && uses_one(b_); }));
  for (int round = 0; round < 5; ++round) {
    ASSERT_NO_FATAL_FAILURE(Settle());
    rails_[&a_][1]->set_active(true);
    for (int polls = 0; polls < 64; ++polls) PollOne(a_);  // makes the offer
    Break(&a_, 1);
    for (int polls = 0; polls < 64; ++polls) PollOne(a_);
    for (int i = 0; i < 20; ++i) ASSERT_NO_FATAL_FAILURE(Notify(&there_));
    ASSERT_NO_FATAL_FAILURE(Settle());
    rails_[&a_][1]->set_active(false);
    PollFor(kMillisecond);
  }
}

TEST_P(Striped, WithoutARailTheChannelCloses) {
  ASSERT_NO_FATAL_FAILURE(Open(2, Nasty(GetParam())));
  for (int round = 0; round < 100; ++round) {
    Step();
    Poll();
  }
  Break(&a_, 0);
  if (random_() % 2 == 0) PollFor(kMillisecond, 30);
  Break(&b_, 1);
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectClosedOnce();
  EXPECT_EQ(a_.handler->reason.code(), Code::kUnavailable);
}

TEST_P(Striped, ClosingTellsTheReasonAndStillSendsWhatWaits) {
  ASSERT_NO_FATAL_FAILURE(Open(1 + GetParam() % 3, Nasty(GetParam())));
  for (int i = 0; i < 4; ++i) Write(&there_);
  a_.channel->Close(Status(Code::kCancelled, "enough"));
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectClosedOnce();
  EXPECT_NE(b_.handler->reason.message().find("enough"), std::string::npos)
      << b_.handler->reason.message();
  EXPECT_EQ(a_.handler->reason.message(), "enough");
}

// Of each test, so many; more with STRIPED_SEEDS.
int Seeds() {
  const char* seeds = std::getenv("STRIPED_SEEDS");
  return seeds == nullptr ? 3 : std::atoi(seeds);
}

INSTANTIATE_TEST_SUITE_P(Seed, Striped, ::testing::Range(1, 1 + Seeds()));

}  // namespace
}  // namespace rdma_transport::fabric::striped
