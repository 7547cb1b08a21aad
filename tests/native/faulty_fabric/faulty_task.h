// A task whose fabric fails as it is told.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "fabric/registry.h"
#include "faulty_fabric/device.h"
#include "task.h"

namespace rdma_transport::testing {

inline std::unique_ptr<FaultyDevice> OpenFaulty(const Settings& settings, const Faults& faults) {
  std::unique_ptr<fabric::Device> inner;
  const Status opened = fabric::OpenDevice(settings, &inner);
  EXPECT_TRUE(opened.ok()) << opened.message();
  return std::make_unique<FaultyDevice>(std::move(inner), faults);
}

class FaultyTask {
 public:
  FaultyTask(const std::string& name, const Settings& settings, const Faults& faults)
      : FaultyTask(name, settings, OpenFaulty(settings, faults)) {}

  Task& task() { return task_; }
  FaultyDevice& device() { return *device_; }
  Dice& dice() { return device_->dice(); }
  operator Task&() { return task_; }

 private:
  FaultyTask(const std::string& name, const Settings& settings,
             std::unique_ptr<FaultyDevice> device)
      : device_(device.get()), task_(name, settings, std::move(device)) {}

  FaultyDevice* const device_;
  Task task_;
};

}  // namespace rdma_transport::testing
