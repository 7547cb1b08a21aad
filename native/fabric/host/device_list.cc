#include "fabric/host/device_list.h"

#include <algorithm>
#include <charconv>

namespace rdma_transport::fabric::host {
namespace {

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

bool DeviceList::Names(const Entry& entry, std::string_view device, int port) const {
  const bool same =
      exact ? device == entry.name : device.compare(0, entry.name.size(), entry.name) == 0;
  return same && (entry.port == 0 || entry.port == port);
}

int DeviceList::Place(std::string_view device, int port) const {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return Names(entry, device, port); });
  if (all_but || entries.empty()) return found == entries.end() ? 0 : -1;
  return found == entries.end() ? -1 : static_cast<int>(found - entries.begin());
}

bool DeviceList::MayUse(std::string_view device) const {
  if (entries.empty()) return true;
  return all_but != std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
           if (all_but && entry.port != 0) return false;
           return Names(entry, device, entry.port);
         });
}

Status ParseDeviceList(const std::string& setting, const std::string& text,
                       const std::string& example, DeviceList* list) {
  const auto malformed = [&](const std::string& reason) {
    return Status(Code::kInvalidArgument,
                  setting + "='" + text + "': " + reason + "; it takes " + example +
                      "; ^ in front leaves them out, = in front makes names exact");
  };
  *list = DeviceList();
  std::string_view rest = Trim(text);
  if (rest.empty()) return OkStatus();
  if (rest.front() == '^') {
    list->all_but = true;
    rest.remove_prefix(1);
  }
  if (!rest.empty() && rest.front() == '=') {
    list->exact = true;
    rest.remove_prefix(1);
  }
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const std::string_view item = Trim(rest.substr(0, comma));
    if (more) rest.remove_prefix(comma + 1);
    const size_t colon = item.find(':');
    DeviceList::Entry entry;
    entry.name = item.substr(0, colon);
    if (entry.name.empty()) return malformed("a name is missing");
    if (entry.name.find_first_of("^=") != std::string::npos) {
      return malformed("^ and = stand once, in front of the whole list");
    }
    if (entry.name.find(' ') != std::string::npos) {
      return malformed("'" + entry.name + "' is no name of a device");
    }
    if (colon != std::string_view::npos) {
      const std::string_view port = item.substr(colon + 1);
      const char* end = port.data() + port.size();
      const auto parsed = std::from_chars(port.data(), end, entry.port);
      if (parsed.ec != std::errc() || parsed.ptr != end || entry.port < 1 || entry.port > 255) {
        return malformed("'" + std::string(port) + "' is no port; the first one is 1");
      }
    }
    list->entries.push_back(std::move(entry));
  }
  return OkStatus();
}

}  // namespace rdma_transport::fabric::host
