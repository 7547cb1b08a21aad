// A libfabric that behaves like other providers than the one underneath, for tests: how it is set
// up, disturbed and watched.
//
// A process that loads libfaulty_libfabric.so in place of libfabric.so.1 gets the real library's
// TCP provider with native FI_EP_RDM endpoints ("net" in 1.17, "tcp" later), changed by the
// environment variable FAULTY_LIBFABRIC: "key=value" pairs, separated by spaces or commas. It is
// read once, at load. With an unknown key or a bad value, a message goes to stderr and fi_getinfo()
// returns -FI_EINVAL. Without the variable, everything is as the real provider has it.
//
// Order:
//   order=provider     what the real provider promises and keeps. The default.
//   order=none         msg_order and comp_order are 0, and messages overtake each other, too: what
//                      any provider may do for a client that asks for no order.
//     With none, half of the sends, writes and reads wait a random time before they are
//     transmitted. Half of the waiting writes and sends without FI_DELIVERY_COMPLETE complete at
//     once, before their data is placed; those with it never do. Waiting posts are transmitted
//     while their domain makes progress: in posts, reads of a completion queue and fi_trywait().
//     The wait descriptor becomes readable for them.
//   delay_us=N         the longest such wait. Default: 1000
//   seed=N             of all random decisions. Default: 1
//
// What the provider lacks:
//   cq_data=N          cq_data_size: 8 (CXI: cxip.h), 4 (EFA: efa_cq.h) or 0 (no remote data,
//                      -FI_ENOSYS). Larger data is -FI_EINVAL. Default: 8
//   rma_event=on|off   off: the capability FI_RMA_EVENT is missing. Remote data with a write works
//                      all the same: EFA lacks it (efa_rdm_ope.c), and aws-ofi-nccl relies on
//                      fi_writedata() there (nccl_ofi_rdma.cpp).
//   writedata=on|off   off: whatever the capabilities are, fi_writedata() is -FI_ENOSYS, and
//                      fi_writemsg() with remote data -FI_EBADFLAGS. CXI, from 2.5 on unless its
//                      environment says otherwise (cxip_rma.c, fi_cxi(7)).
//   wait=fd            wait descriptors work. The default.
//   wait=none          fi_cq_open() with a wait object is -FI_ENOSYS: EFA before 2.5.
//   wait=remote        the same, unless the domain is opened for FI_REMOTE_COMM and not
//                      FI_LOCAL_COMM: EFA then has no provider of shared memory (efa_rdm_cq.c,
//                      efa_shm.c).
//   wait=stuck         the wait descriptor stays readable after the first completion ("net" up to
//                      1.18).
//   max_msg=N          max_msg_size; more is -FI_EMSGSIZE. Default: the real one
//   tx_size=N          tx_attr->size: at most N sends, writes and reads of an endpoint may lack a
//                      completion that was read from the queue, then -FI_EAGAIN. Default: no limit
//   provider=A+B       the names it presents, each with all addresses, in this order. Default: the
//                      real one. "efa+tcp" is a host with a card.
//   nics=A+B...        of these, each that is not TCP has one card for each number, "efa0" and so
//                      on, of that speed in Gb/s; 0: its link is down. Their PCI addresses are
//                      0000:10:00.0, 0000:11:00.0... All are on the loopback interface.
//   direct=0|1         1: EFA's cards come twice, first in a fabric "efa-direct" (efa_prov.c). Its
//                      endpoints send 8 KiB at most, though max_msg_size is that of writes
//                      (fi_efa(7)); more is -FI_EMSGSIZE.
//   no_provider=0|1    1: fi_getinfo() finds nothing.
//   version=1.N        what fi_version() returns. A newer one is refused by fi_getinfo().
//   rma_since=1.N      writes and reads of a client that asks for an older interface are emulated,
//                      which is only counted. EFA: 1.18 on some cards (efa_rdm_util.c).
// Hints that ask for more than that find nothing (-FI_ENODATA).
//
// Memory:
//   mr=BIT+BIT...      mr_mode, which hints must accept:
//     prov_key         the provider chooses random keys (verbs, EFA).
//     virt_addr        remote addresses are virtual addresses, not offsets (verbs, EFA).
//     local            buffers of posts need a descriptor of a region that covers them with the
//                      access of the post, else -FI_EINVAL (verbs, EFA).
//     allocated        registered pages must be mapped, else -FI_EFAULT (verbs, EFA, CXI).
//     endpoint         a region has no key and cannot be reached until fi_mr_bind() to an endpoint
//                      and fi_mr_enable() (CXI: cxip_info.c has it with prov_key and allocated).
//   mr_key_size=N      bytes of a key, 1 to 8. Larger requested keys are -FI_EKEYREJECTED.
//                      Default: 8
//   mr_fail=N          the Nth registration and all later ones are -FI_ENOMEM. Default: 0, none
//   mr_limit=N         registrations beyond N bytes in all are -FI_ENOSPC. Default: 0, no limit
//
// Faults:
//   eagain=P           percent of the posts that return -FI_EAGAIN.
//   late=N             completions are held back up to N us, in order unless order=none.
//   broken=CARD        all that is sent, written and read by this card of nics= fails: FI_EIO.
//   lose=P             percent of the sends and writes that complete and are never transmitted,
//                      as when TCP reconnects after a reset. Not those with FI_DELIVERY_COMPLETE.
//
// Stricter than most providers, to find mistakes: FI_FENCE without the capability is -FI_EBADFLAGS;
// op_context of the completion of a peer's write is NULL; a post on an endpoint that is not enabled
// is -FI_EOPBADSTATE; objects in use cannot be closed (-FI_EBUSY). What is not supported returns
// -FI_ENOSYS: event queues, counters, injected and selective operations, several buffers, waiting
// reads of a queue. Tagged messages, atomics and collectives are no endpoint's. An endpoint
// that closes transmits what waits, without waiting for the peer; what waits for a peer that is
// removed is transmitted before.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// How often each behavior struck, since load or the last reset.
struct FaultyLibfabricCounters {
  // Accepted posts.
  uint64_t sends;
  uint64_t writes;
  uint64_t reads;
  uint64_t receives;
  uint64_t emulated;  // of the writes and reads
  // Posts that waited before they were transmitted, those that a later one overtook, and those that
  // completed before they were transmitted.
  uint64_t delayed_sends;
  uint64_t delayed_writes;
  uint64_t delayed_reads;
  uint64_t overtaken_sends;
  uint64_t overtaken_writes;
  uint64_t overtaken_reads;
  uint64_t early_completions;
  // Completions held back, and of these the ones that a later one overtook.
  uint64_t late_completions;
  uint64_t reordered_completions;
  // Completions in error that were made up, and posts that were lost.
  uint64_t failed_completions;
  uint64_t lost;
  // Posts refused: -FI_EAGAIN by chance or for a time, for a full transmit queue, for their size,
  // for remote data, for a descriptor.
  uint64_t eagain;
  uint64_t tx_full;
  uint64_t too_large;
  uint64_t bad_data;
  uint64_t bad_descriptor;
  // Registrations, those refused, and calls of fi_getinfo() that a setting let find nothing.
  uint64_t registrations;
  uint64_t refused_registrations;
  uint64_t refused_hints;
  // Calls of fi_trywait() that let the client sleep.
  uint64_t trywaits;
  // Living now. A reset keeps these.
  uint64_t fabrics;
  uint64_t domains;
  uint64_t endpoints;
  uint64_t completion_queues;
  uint64_t address_vectors;
  uint64_t regions;
  uint64_t registered_bytes;
};

// Sets a key, for what is posted, registered or asked for from now on. mr_mode of a domain is that
// of the fi_info it was opened with. 0, or EINVAL.
int faulty_libfabric_set(const char* key, const char* value);

// Back to what the environment says, without pending faults, and with counters at zero.
void faulty_libfabric_reset(void);

void faulty_libfabric_counters(struct FaultyLibfabricCounters* counters);

// The next post of this kind ("send", "write", "read", "receive" or "any") completes with FI_EIO,
// or is lost (not for reads and receives). Calls add up. 0, or EINVAL.
int faulty_libfabric_fail_next(const char* kind);
int faulty_libfabric_lose_next(const char* kind);

// With 1, writes wait until 0, whatever the order is, and those without FI_DELIVERY_COMPLETE
// complete at once.
void faulty_libfabric_hold_writes(int hold);

// All posts return -FI_EAGAIN for this long from now. 0 ends it.
void faulty_libfabric_eagain_for(int milliseconds);

#ifdef __cplusplus
}
#endif
