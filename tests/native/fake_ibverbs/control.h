// A libibverbs without a card, for tests: how it is set up, disturbed and watched.
//
// A process that loads libfake_ibverbs.so in place of libibverbs.so.1 finds the devices that the
// environment variable FAKE_IBVERBS describes, "key=value;key=value...". Queue pairs of one process
// and of several processes of one user on this host can be connected with each other. An unknown
// key or a bad value in the variable ends the process with a message.
//
// Keys of the process:
//   devices=fake_0,fake_1   the devices, in order; may be empty. Default: fake_0
//   delay_us=N              each send work request waits a random time of at most N. Default: 0
//   retry_ms=N              how long a peer may be gone before IBV_WC_RETRY_EXC_ERR; longer where
//                           the retries themselves have to wait for a processor; 0: as the queue
//                           pair's timeout and retry_cnt say, without what cards add. Default: 300
//   keep_qps=B              1: ibv_destroy_qp() waits until it is 0. Default: 0
//   hold_rtr=B              1: ibv_modify_qp() to RTR waits until it is 0. Default: 0
//   memlock=N               bytes that may be registered, beyond which ENOMEM. Default: no limit
//   fork=S                  disabled, enabled or unneeded, for ibv_is_fork_initialized(). Default:
//                           unneeded
//   flap_ms=N               from now on, all traffic of the process vanishes for so long
//   fail=VERB:NTH:ERROR     as fake_ibverbs_fail()
//   complete_with=STATUS:VENDOR:NTH   as fake_ibverbs_complete_with()
//   quiet=B                 1: changes of ports raise no events. Default: 0
//   raise=EVENT             gid_change, lid_change, pkey_change, sm_change or client_reregister, of
//                           all ports, though nothing changed; or cq_err: all completion queues
//                           there are break, and with them their queue pairs
//   break_path=B            as fake_ibverbs_break_path(); 0 or 1
//
// Keys of devices. They hold for all devices there are and will be; "fake_1.open_error=EACCES" is
// for one device, "fake_1:2.lid=7" for one port, and the device must have been named before:
//   ports=N                 ports of the device, numbered from 1. Default: 1
//   sysfs=FOLDER            of the device. Default: none
//   open_error=ERROR        ibv_open_device() fails, ERROR as a number or as EACCES. Default: 0
//   rtr_error=ERROR         ibv_modify_qp() to RTR fails. Default: 0
//   max_qp_wr=N max_cqe=N max_inline=N max_qp=N max_mr=N
//   comp_vectors=N          what ibv_query_device() shows or ibv_create_*() refuses to exceed
//   iova=S                  any, or same: ibv_reg_mr_iova2() takes no address but the memory's own.
//                           Default: any
//   peer_memory=B           1: memory files that are mapped without access can be registered by
//                           their address, as memory of GPUs with nvidia_peermem. The process
//                           must have a descriptor of the file. Default: 0. Other memory without
//                           access is refused with EFAULT
//   link_layer=S            ethernet or infiniband. Makes default GIDs and lid anew. Default:
//                           ethernet
//   port_state=S            active, down, init or armed. Default: active
//   active_mtu=N max_mtu=N  256, 512, 1024, 2048 or 4096. Default: 1024 and 4096
//   network=N               only ports of one network reach each other. Default: 0
//   active_width=N, active_speed=N   as in ibv_port_attr. Default: 2 and 32, 4 lanes of 25 Gb/s
//   active_speed_ex=N       what callers are told who know of it, as by rdma-core 56. Default: 0
//   bandwidth=N             bytes per second that the port sends; 0: no limit. Default: 0
//   place_late_us=N         the bytes of writes that arrive by the port are visible only after this
//                           time, though they are acknowledged at once; earlier by the completion
//                           of a receive, or for a read, on the same queue pair. Queue pairs and
//                           ports are not ordered to each other. Default: 0
//   overtaken=N             the completion of a receive does not make writes of N bytes and more
//                           visible, as no card may do; 0: it does. Default: 0
//   lid=N                   Default: 0 on ethernet; 1, 2... on infiniband
//   grh_required=B          1: as virtual functions that share a lid. Default: 0
//   max_msg_sz=N            Default: 1 GiB
//   pkeys=N,N               Default: 0xffff
//   gids=TYPE:ADDRESS,...   TYPE is ib, rocev1 or rocev2, ADDRESS IPv6 or IPv4; "none" leaves an
//                           index empty. Default on ethernet, for the first device: rocev1 and
//                           rocev2 of a link-local address, then rocev1 and rocev2 of 10.0.0.1
// A change of port_state, gids, lid or pkeys at run time raises the async event that goes with it.
//
// For processes other than the test's own, the engine thread reads commands from the abstract unix
// datagram socket "fake_ibverbs.<pid>", one per line: "KEY=VALUE", "set KEY VALUE", "fail VERB NTH
// ERROR", "complete_with STATUS VENDOR NTH", "break_path 0|1", "port_event 0|1", "device_fatal",
// "reset", "stats". A sender that has an address is answered "ok", "error: ..." or, to "stats", one
// JSON object whose keys are the fields of FakeIbverbsStats.
//
// Stricter than most cards, to find mistakes: queues hold exactly what was asked for; a send queue
// entry is free only when a completion of it or of a later one was polled; lkey and rkey of a
// region differ; opcode and byte_len of a failed completion are garbage; destroying a queue pair
// takes its completions out of the queue; what a real library would wait for (events that nobody
// acked) is EBUSY; both ends must agree on addresses, GID type, P_Key, first PSN and MTU. A region
// is known to both ends by its IOVA alone.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct FakeIbverbsStats {
  // Since the start or the last reset. Send work requests that ended well, by opcode.
  uint64_t writes;
  uint64_t sends;
  uint64_t reads;
  // Completions in all, and those that failed.
  uint64_t completions;
  uint64_t failed_completions;
  uint64_t completion_events;
  uint64_t highest_cq_fill;
  uint64_t cq_overruns;
  // Receiver-not-ready: answers given to peers, and answers got from them.
  uint64_t rnr_naks_sent;
  uint64_t rnr_naks_received;
  uint64_t registrations;
  // Living now.
  uint64_t registered_bytes;
  uint64_t device_lists;
  uint64_t contexts;
  uint64_t pds;
  uint64_t mrs;
  uint64_t channels;
  uint64_t cqs;
  uint64_t qps;
  uint64_t last_vector;  // of the completion queue that was created last
  uint64_t held;         // calls that wait because of hold_rtr
};

// Sets a key. 0, or EINVAL.
int fake_ibverbs_set(const char* key, const char* value);

// The nth call from now (1 is the next) of a verb fails. Verbs are named with or without "ibv_":
// get_device_list, open_device, query_device, query_port, query_gid (for _ibv_query_gid_ex too),
// query_pkey, alloc_pd, dealloc_pd, reg_mr (for ibv_reg_mr_iova2 too), reg_dmabuf_mr, dereg_mr,
// create_comp_channel, destroy_comp_channel, create_cq, resize_cq,
// destroy_cq, create_qp, modify_qp, query_qp, destroy_qp, close_device, fork_init, poll_cq,
// req_notify_cq, post_send, post_recv, get_cq_event, get_async_event. 0, or EINVAL.
int fake_ibverbs_fail(const char* verb, int nth, int error);

// The nth send work request posted from now (1 is the next) moves nothing and completes with this
// status; its queue pair goes to the error state. For IBV_WC_REM_ACCESS_ERR,
// IBV_WC_REM_INV_REQ_ERR and IBV_WC_REM_OP_ERR so does the peer's, with its async event.
void fake_ibverbs_complete_with(int wc_status, int vendor_err, int nth);

// All traffic of this process vanishes, to itself too. Work requests under way go on if the path
// is mended within retry_ms.
void fake_ibverbs_break_path(bool broken);

// All ports of all devices become active or down, with their async events.
void fake_ibverbs_port_event(bool up);

// All open devices die: IBV_EVENT_DEVICE_FATAL, nothing completes any more, posts and verbs fail
// with EIO, while objects can still be destroyed. Devices opened later work.
void fake_ibverbs_device_fatal(void);

void fake_ibverbs_stats(struct FakeIbverbsStats* stats);

// The payload that a port of this process has sent since the start or the last reset, in bytes;
// also what peers have read by it.
uint64_t fake_ibverbs_port_bytes(const char* device, int port);

// What this process lets peers reach, in no order. `key`: the rkey. `access`: flags of
// ibv_reg_mr().
struct FakeIbverbsMemory {
  uint64_t address;
  uint64_t iova;
  uint64_t length;
  uint32_t access;
  uint32_t key;
};
struct FakeIbverbsQueuePair {
  uint32_t number;
  uint32_t access;
};
// Fill at most `room` and return how many there are.
int fake_ibverbs_regions(struct FakeIbverbsMemory* regions, int room);
int fake_ibverbs_queue_pairs(struct FakeIbverbsQueuePair* pairs, int room);

// Back to what the environment says, without injections, and with counters at zero. Objects live
// on; async events are not raised.
void fake_ibverbs_reset(void);

#ifdef __cplusplus
}
#endif
