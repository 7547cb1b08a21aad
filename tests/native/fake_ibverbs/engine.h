// What both halves of the engine need of each other.
#pragma once

#include "fake.h"

namespace fake_ibverbs {

// Whether packets of this queue pair leave and reach its port.
bool PathUp(const Fake& fake, const Qp& qp);
// When the port may send more: its bandwidth is limited. And counts what it sends.
Nanos FreeAt(const Fake& fake, const Qp& qp);
void UseBandwidth(Fake* fake, const Qp& qp, uint64_t bytes);
// The port's GID table entry that the queue pair sends from, or null.
const GidEntry* OwnGid(const Fake& fake, const Qp& qp);

// The error state: what is under way is given up, and the engine flushes the rest.
void BreakQp(Qp* qp);
void CompleteReceive(Fake* fake, Qp* qp, ibv_wc_status status);

// Each does a bounded piece of work and returns when to be called again.
Nanos StepRequester(Fake* fake, Qp* qp, Nanos now);
Nanos StepResponder(Fake* fake, Qp* qp);

// Makes the bytes of writes visible that are late enough, or all of them. PlaceDue() returns when
// to be called again.
Nanos PlaceDue(Qp* qp, Nanos now);
void PlaceAll(Qp* qp);

void OnRequest(Fake* fake, uint64_t link, const Frame& frame);
void OnData(Fake* fake, uint64_t link, const Frame& frame, const char* payload);
void OnReadData(Fake* fake, const Frame& frame, const char* payload);
void OnAck(Fake* fake, const Frame& frame);
void OnDropped(Fake* fake, const Frame& frame);
// The request under way has lost a packet: it is sent again until the retry time is over.
void Lose(const Fake& fake, Qp* qp, Nanos now);

// A run of bytes within one of the pieces of a scatter-gather list.
struct Run {
  uint64_t address;
  uint32_t lkey;
  uint64_t length;
};
Run RunAt(const std::vector<ibv_sge>& pieces, uint64_t offset, uint64_t limit);
// Copies into local memory. False where the local keys do not allow it.
bool Scatter(const Fake& fake, const ibv_pd* pd, const std::vector<ibv_sge>& pieces,
             uint64_t offset, const char* bytes, uint64_t length);

}  // namespace fake_ibverbs
