// What one engine tells another, in one process or between two, about a work request.
//
// A requester sends kRequest, then the bytes of a write or send as kData, and waits for kAck, or
// for all kReadData of a read. Behind a write or send, it sends short ones without waiting; if the
// first is lost, they are lost too, and all are sent again. The psn makes requests sent again
// recognizable, and the attempt tells what belongs to a try given up.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace fake_ibverbs {

constexpr uint32_t kFrameMagic = 0x46414b45;
constexpr uint32_t kPsnMask = 0xffffff;
constexpr uint32_t kMaxAhead = 16;
// Bytes that one frame carries; the unit in which memory is checked and copied, like a packet.
constexpr uint32_t kMaxPayload = 128 << 10;

enum class FrameType : uint32_t {
  kRequest = 1,
  kData,
  kReadData,
  // The responder is done, refuses, or is not ready (kReceiverNotReady).
  kAck,
  // Stands for a packet lost on the way, of which a card would only learn by its timeout.
  kDropped,
};

constexpr uint32_t kReceiverNotReady = IBV_WC_RNR_RETRY_EXC_ERR;

struct Frame {
  uint32_t magic = kFrameMagic;
  FrameType type = FrameType::kRequest;
  uint32_t source_qp = 0;
  uint32_t target_qp = 0;
  uint32_t psn = 0;
  uint32_t attempt = 0;
  // The bytes that follow, and where they belong in the message.
  uint32_t payload = 0;
  // kAck: how the work request ends. kRequest: unless 0, how the responder is to refuse it.
  uint32_t status = 0;
  uint64_t offset = 0;
  // For kRequest only.
  uint64_t remote_addr = 0;
  uint64_t length = 0;
  uint32_t opcode = 0;
  uint32_t imm = 0;
  uint32_t rkey = 0;
  uint32_t solicited = 0;
  uint32_t path_mtu = 0;
  uint32_t pkey = 0;
  uint32_t gid_type = 0;
  uint32_t global = 0;
  uint32_t source_lid = 0;
  uint32_t target_lid = 0;
  uint32_t network = 0;
  ibv_gid source_gid = {};
  ibv_gid target_gid = {};
};

}  // namespace fake_ibverbs
