// What arrives on the rails of a channel that has several: counts the records of each rail, and
// holds those that must wait for other rails or for other records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/arrivals.h"
#include "base/status.h"
#include "fabric/striped/wire.h"

namespace rdma_transport::fabric::striped {

// Not thread-safe: the polling thread's.
class Inbox {
 public:
  struct Record {
    RecordKind kind = RecordKind::kMark;
    uint64_t number = 0;
    uint64_t follows = 0;  // all up to this one
    std::string_view bytes;
    std::vector<Wait> waits;
    std::string kept;  // the bytes, if it was held
  };

  // Begins to count a rail.
  void AddRail(uint32_t rail);
  // Records that have arrived on the rail.
  uint64_t received(uint32_t rail) const;
  // All that was lost on the rail has been sent again, or it was never used.
  void Settle(uint32_t rail) { rails_.erase(rail); }

  // Takes what came on a rail. If `now`, it may be handed up; its bytes are those of `data`. Then
  // call Next() until it returns false. Returns DataLoss for what is not part of the protocol,
  // ResourceExhausted if too much would be held.
  Status Take(uint32_t rail, std::string_view data, Record* record, bool* now);
  // Returns the next held record that may be handed up.
  bool Next(Record* record);

 private:
  using Held = std::map<uint64_t, Record>;

  void NoteHanded(const Record& record);
  bool MayLeave(const Record& record) const;
  bool TakeFrom(Held* held, Record* record);

  std::map<uint32_t, uint64_t> rails_;  // records of each
  uint32_t next_rail_ = 0;
  Arrivals arrived_;
  Arrivals handed_;
  uint64_t control_ = 0;  // the last one of the rails that was handed up, but kSettled
  Held held_;             // notifications
  Held controls_;         // others
  size_t held_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::striped
