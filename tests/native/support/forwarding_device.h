// A device that hands every call on to another one; tests override what should go otherwise.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "fabric/fabric.h"

namespace rdma_transport::testing {

class ForwardingDevice : public fabric::Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<fabric::Device> inner) : inner_(std::move(inner)) {}

  std::string Summary() const override { return inner_->Summary(); }
  bool Usable() const override { return inner_->Usable(); }
  Status Reaches(std::string_view address) const override { return inner_->Reaches(address); }
  Status Allocate(size_t length, fabric::Access access, void* place,
                  std::unique_ptr<fabric::Region>* region) override {
    return inner_->Allocate(length, access, place, region);
  }
  size_t RegionGranule() const override { return inner_->RegionGranule(); }
  Status Adopt(fabric::Region* region) override { return inner_->Adopt(region); }
  fabric::MappedSpan MapOwn(const fabric::RemoteSpan& span) override {
    return inner_->MapOwn(span);
  }
  bool Locate(const void* data, fabric::RemoteSpan* span) const override {
    return inner_->Locate(data, span);
  }
  Status Open(std::weak_ptr<fabric::ChannelHandler> handler,
              std::shared_ptr<fabric::Channel>* channel) override {
    return inner_->Open(std::move(handler), channel);
  }
  int Poll() override { return inner_->Poll(); }
  bool ArmNotification() override { return inner_->ArmNotification(); }
  void Sleep(Nanos deadline) override { inner_->Sleep(deadline); }
  void Wake() override { inner_->Wake(); }
  int WaitDescriptor() const override { return inner_->WaitDescriptor(); }

 protected:
  fabric::Device* inner() { return inner_.get(); }

 private:
  const std::unique_ptr<fabric::Device> inner_;
};

}  // namespace rdma_transport::testing
