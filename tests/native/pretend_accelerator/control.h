// An accelerator without hardware, for tests: how it is set up, disturbed and watched.
//
// libpretend_accelerator.so adds the device type PRETEND to TensorFlow, by TensorFlow's C API only.
// Load it before the server is made, in each process:
//
//   from tensorflow.python.framework import load_library
//   load_library.load_pluggable_device_library(path)
//
// Device memory is memory files that are mapped twice. TensorFlow gets addresses of the mapping
// without any access, so a processor that uses one gets SIGSEGV. Each stream has a thread, which
// carries out copies and kernels in order, and late. While a copy or kernel is delayed, its
// destination holds scribbles; its source is read after the delay. So what does not wait for a
// stream reads, or sends, wrong bytes.
//
// Kernels, for float: Neg, Square, Add, AddV2, Sub, Mul, Div (operands of equal shape, or one with
// a single element), MatMul, ConcatV2 along the first axis, SplitV of vectors, and Abs, which reads
// its input in the host's memory. TensorFlow has its own for any device: Identity, Const, Shape,
// control flow, variables, _Send, _Recv. Those that it has for AssignAddVariableOp and
// AssignSubVariableOp access the device's memory from the processor, and its wheel does not export
// TF_AssignUpdateVariable(), with which others could be written. So assign sums and differences.
//
// The environment variable PRETEND_ACCELERATOR has "key=value" pairs, separated by spaces or
// commas. It is read when TensorFlow first asks; an unknown key or a bad value ends the process
// with a message. PretendAcceleratorSet() changes settings later, except for those marked with *.
//
//   devices=N*       devices in this process. Default: 1
//   delay_us=N       copies and kernels wait a random time of up to N us. Default: 0
//   copy_us=N        each copy waits N us more. Default: 0
//   mib_us=N         each copy waits N us more per MiB, as if by a DMA engine. Default: 0
//   in_order=0|1*    1: what is enqueued on any stream of a device waits for all that was enqueued
//                    there before. TensorFlow 2.21 needs it to receive tensors over gRPC: there
//                    PluggableDevice::MakeTensorFromProto() copies into memory that kernels which
//                    did not run yet still read. Default: 0
//
// Faults; 0, the default, is none:
//
//   fail_alloc=N     the Nth allocation from now, and all later ones, fail: out of memory
//
//   fail_dtoh=N      the Nth copy from now from a device to the host, and only that one, is
//                    refused when it is enqueued
//
//   fail_htod=N      the same for copies from the host to a device
//
//   fail_stream=N    the Nth copy or kernel from now fails when it is carried out. Its stream stays
//                    in error: it carries out no further copies and kernels, and its events have
//                    the status SE_EVENT_ERROR. It still makes callbacks.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct PretendAcceleratorCounters {
  // Copies that were carried out, also blocking ones.
  uint64_t dtoh_copies;
  uint64_t dtoh_bytes;
  uint64_t htod_copies;
  uint64_t htod_bytes;
  uint64_t dtod_copies;
  uint64_t dtod_bytes;
  uint64_t kernels;
  // Now:
  uint64_t allocated_bytes;  // by TensorFlow's allocator, which keeps what it has
  uint64_t pending;          // enqueued copies and kernels that did not end yet
} PretendAcceleratorCounters;

// Of all devices in this process.
void PretendAcceleratorCount(PretendAcceleratorCounters* counters);

// Takes "key=value" pairs as above. Returns 0 and changes nothing for an unknown key or a bad
// value.
int PretendAcceleratorSet(const char* pairs);

// What TensorFlow's allocator got at once. No other allocation ever has this `id`.
typedef struct PretendAllocation {
  void* address;
  uint64_t size;
  uint64_t id;
} PretendAllocation;

// Finds the allocation in which `address` lies, and, if `file` is not null, a new descriptor of its
// memory, as that of a DMA-BUF. Returns 0 if there is none. See pretend_cuda/control.h.
int PretendAcceleratorFind(const void* address, PretendAllocation* allocation, int* file);

#ifdef __cplusplus
}
#endif
