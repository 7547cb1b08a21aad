// What TensorFlow's PluggableDevice interface asks of a platform.
#include <tensorflow/c/experimental/stream_executor/stream_executor.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "memory.h"
#include "settings.h"
#include "stream.h"

struct SP_Timer_st {
  std::chrono::steady_clock::time_point begin;
  std::chrono::steady_clock::time_point end;
};

namespace pretend_accelerator {
namespace {

void Succeed(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = MemoryOf(device->ordinal).Allocate(size);
  memory->size = memory->opaque == nullptr ? 0 : size;
}

void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  if (memory->opaque == nullptr) return;
  MemoryOf(device->ordinal).Deallocate(memory->opaque);
  memory->opaque = nullptr;
  memory->size = 0;
}

void* AllocateHost(const SP_Device*, uint64_t size) {
  constexpr uint64_t kAlignment = 64;
  return std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
}

void DeallocateHost(const SP_Device*, void* memory) { std::free(memory); }

TF_Bool HasNoStatistics(const SP_Device*, SP_AllocatorStats*) { return 0; }

TF_Bool MemoryUsage(const SP_Device* device, int64_t* free, int64_t* total) {
  const Memory& memory = MemoryOf(device->ordinal);
  *free = static_cast<int64_t>(memory.free_bytes());
  *total = static_cast<int64_t>(memory.size());
  return 1;
}

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = static_cast<SP_Stream>(streams().Create(device->ordinal));
  Succeed(status);
}

void DestroyStream(const SP_Device*, SP_Stream stream) { streams().Destroy(stream); }

void CreateStreamDependency(const SP_Device*, SP_Stream dependent, SP_Stream other,
                            TF_Status* status) {
  dependent->WaitFor(other);
  Succeed(status);
}

void StatusOf(const Stream& stream, TF_Status* status) {
  if (stream.failed()) {
    TF_SetStatus(status, TF_INTERNAL, "the stream of the pretend accelerator is in error");
  } else {
    Succeed(status);
  }
}

void GetStreamStatus(const SP_Device*, SP_Stream stream, TF_Status* status) {
  StatusOf(*stream, status);
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st{std::make_shared<EventState>()};
  Succeed(status);
}

void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }

SE_EventStatus GetEventStatus(const SP_Device*, SP_Event event) {
  if (!event->state->Reached()) return SE_EVENT_PENDING;
  return event->state->failed() ? SE_EVENT_ERROR : SE_EVENT_COMPLETE;
}

void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  stream->Record(event->state);
  Succeed(status);
}

void WaitForEvent(const SP_Device* const, SP_Stream stream, SP_Event event,
                  TF_Status* const status) {
  stream->WaitFor(event->state);
  Succeed(status);
}

void BlockHostForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  event->state->Wait(event->state->recorded());
  Succeed(status);
}

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  Succeed(status);
}

void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }

void StartTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  stream->EnqueueAlways([timer] { timer->begin = std::chrono::steady_clock::now(); });
  Succeed(status);
}

void StopTimer(const SP_Device*, SP_Stream stream, SP_Timer timer, TF_Status* status) {
  stream->EnqueueAlways([timer] { timer->end = std::chrono::steady_clock::now(); });
  Succeed(status);
}

uint64_t Nanoseconds(SP_Timer timer) {
  const auto passed = timer->end - timer->begin;
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

// A null stream makes the caller wait.
void Run(SP_Stream stream, Operation operation) {
  if (stream != nullptr) {
    stream->Enqueue(std::move(operation));
    return;
  }
  thread_local std::mt19937_64 random(1);
  RunLate(operation, &random);
}

void Copy(SP_Stream stream, char* to, const char* from, uint64_t size,
          std::atomic<uint64_t>* copies, std::atomic<uint64_t>* bytes) {
  Operation operation;
  operation.run = [=] {
    std::memcpy(to, from, size);
    ++*copies;
    *bytes += size;
  };
  operation.destination = to;
  operation.bytes = size;
  operation.is_copy = true;
  Run(stream, std::move(operation));
}

bool Refused(std::atomic<int64_t>* fault, TF_Status* status) {
  Succeed(status);
  if (!Strikes(fault, /*lasting=*/false)) return false;
  TF_SetStatus(status, TF_INTERNAL, "the pretend accelerator refuses the copy");
  return true;
}

void CopyToHost(const SP_Device*, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
                uint64_t size, TF_Status* status) {
  if (Refused(&settings().fail_dtoh, status)) return;
  CheckIsHost(to);
  Copy(stream, static_cast<char*>(to), Reachable(from->opaque), size, &counters().dtoh_copies,
       &counters().dtoh_bytes);
}

void CopyToDevice(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
                  uint64_t size, TF_Status* status) {
  if (Refused(&settings().fail_htod, status)) return;
  CheckIsHost(from);
  Copy(stream, Reachable(to->opaque), static_cast<const char*>(from), size, &counters().htod_copies,
       &counters().htod_bytes);
}

void CopyInDevices(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                   const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  Succeed(status);
  Copy(stream, Reachable(to->opaque), Reachable(from->opaque), size, &counters().dtod_copies,
       &counters().dtod_bytes);
}

void CopyToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from,
                   uint64_t size, TF_Status* status) {
  CopyToHost(device, nullptr, to, from, size, status);
}

void CopyToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from,
                     uint64_t size, TF_Status* status) {
  CopyToDevice(device, nullptr, to, from, size, status);
}

void CopyInDevicesNow(const SP_Device* device, SP_DeviceMemoryBase* to,
                      const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  CopyInDevices(device, nullptr, to, from, size, status);
}

void BlockHostUntilDone(const SP_Device*, SP_Stream stream, TF_Status* status) {
  stream->BlockUntilDone();
  StatusOf(*stream, status);
}

void SynchronizeAllActivity(const SP_Device* device, TF_Status* status) {
  streams().BlockUntilDone(device->ordinal);
  Succeed(status);
}

void Fill(SP_Stream stream, const SP_DeviceMemoryBase& location, std::string pattern, uint64_t size,
          TF_Status* status) {
  char* const to = Reachable(location.opaque);
  Operation operation;
  operation.run = [=] {
    for (uint64_t i = 0; i < size; ++i) to[i] = pattern[i % pattern.size()];
  };
  Run(stream, std::move(operation));
  Succeed(status);
}

void MemZero(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* location, uint64_t size,
             TF_Status* status) {
  Fill(stream, *location, std::string(1, '\0'), size, status);
}

void MemSet(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* location, uint8_t pattern,
            uint64_t size, TF_Status* status) {
  Fill(stream, *location, std::string(1, static_cast<char>(pattern)), size, status);
}

void MemSet32(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* location, uint32_t pattern,
              uint64_t size, TF_Status* status) {
  Fill(stream, *location, std::string(reinterpret_cast<char*>(&pattern), sizeof(pattern)), size,
       status);
}

TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn call, void* argument) {
  stream->CallBack([call, argument] {
    TF_Status* status = TF_NewStatus();
    call(argument, status);
    TF_DeleteStatus(status);
  });
  return 1;
}

void CreateStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params,
                          TF_Status* status) {
  SP_StreamExecutor* made = params->stream_executor;
  made->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  made->allocate = Allocate;
  made->deallocate = Deallocate;
  made->host_memory_allocate = AllocateHost;
  made->host_memory_deallocate = DeallocateHost;
  made->get_allocator_stats = HasNoStatistics;
  made->device_memory_usage = MemoryUsage;
  made->create_stream = CreateStream;
  made->destroy_stream = DestroyStream;
  made->create_stream_dependency = CreateStreamDependency;
  made->get_stream_status = GetStreamStatus;
  made->create_event = CreateEvent;
  made->destroy_event = DestroyEvent;
  made->get_event_status = GetEventStatus;
  made->record_event = RecordEvent;
  made->wait_for_event = WaitForEvent;
  made->create_timer = CreateTimer;
  made->destroy_timer = DestroyTimer;
  made->start_timer = StartTimer;
  made->stop_timer = StopTimer;
  made->memcpy_dtoh = CopyToHost;
  made->memcpy_htod = CopyToDevice;
  made->memcpy_dtod = CopyInDevices;
  made->sync_memcpy_dtoh = CopyToHostNow;
  made->sync_memcpy_htod = CopyToDeviceNow;
  made->sync_memcpy_dtod = CopyInDevicesNow;
  made->block_host_for_event = BlockHostForEvent;
  made->block_host_until_done = BlockHostUntilDone;
  made->synchronize_all_activity = SynchronizeAllActivity;
  made->mem_zero = MemZero;
  made->memset = MemSet;
  made->memset32 = MemSet32;
  made->host_callback = HostCallback;
  Succeed(status);
}

void DestroyStreamExecutor(const SP_Platform*, SP_StreamExecutor*) {}

void CountDevices(const SP_Platform*, int* count, TF_Status* status) {
  *count = static_cast<int>(settings().devices);
  Succeed(status);
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status* status) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "pretend";
  params->device->device_vendor = "tests";
  params->device->pci_bus_id = "0000:00:00.0";
  Succeed(status);
}

void DestroyDevice(const SP_Platform*, SP_Device*) {}

int32_t NumaNode(const SP_Device*) { return -1; }
int64_t MemoryBandwidth(const SP_Device*) { return -1; }
double Gflops(const SP_Device*) { return -1; }

void CreateDeviceFns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status* status) {
  *params->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE, nullptr, NumaNode, MemoryBandwidth, Gflops};
  Succeed(status);
}

void DestroyDeviceFns(const SP_Platform*, SP_DeviceFns*) {}

void CreateTimerFns(const SP_Platform*, SP_TimerFns* timer, TF_Status* status) {
  timer->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  timer->nanoseconds = Nanoseconds;
  Succeed(status);
}

void DestroyTimerFns(const SP_Platform*, SP_TimerFns*) {}
void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFns(SP_PlatformFns*) {}

}  // namespace
}  // namespace pretend_accelerator

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  namespace pretend = pretend_accelerator;
  params->struct_size = SE_PLATFORM_REGISTRATION_PARAMS_STRUCT_SIZE;
  params->major_version = SE_MAJOR;
  params->minor_version = SE_MINOR;
  params->patch_version = SE_PATCH;
  SP_Platform* platform = params->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "PRETEND_PLATFORM";
  platform->type = "PRETEND";
  platform->use_bfc_allocator = 1;
  platform->force_memory_growth = 1;
  SP_PlatformFns* functions = params->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = pretend::CountDevices;
  functions->create_device = pretend::CreateDevice;
  functions->destroy_device = pretend::DestroyDevice;
  functions->create_device_fns = pretend::CreateDeviceFns;
  functions->destroy_device_fns = pretend::DestroyDeviceFns;
  functions->create_stream_executor = pretend::CreateStreamExecutor;
  functions->destroy_stream_executor = pretend::DestroyStreamExecutor;
  functions->create_timer_fns = pretend::CreateTimerFns;
  functions->destroy_timer_fns = pretend::DestroyTimerFns;
  params->destroy_platform = pretend::DestroyPlatform;
  params->destroy_platform_fns = pretend::DestroyPlatformFns;
  pretend::Succeed(status);
}
