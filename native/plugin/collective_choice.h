// Decides which algorithm the members of a group use.
//
// Each member describes itself in its device's attributes when it joins the group. TensorFlow's
// group leader sends the attributes of all members to each of them, so all decide alike, without
// another message.
#pragma once

#include <string>
#include <vector>

#include "base/settings.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/framework/device_attributes.pb.h"

namespace rdma_transport {

// Describes this task in `device`, which is one of its own.
void DescribeMember(const Settings& settings, tensorflow::DeviceAttributes* device);

// Returns why the members cannot run the collectives of this transport; empty if they can: each is
// the processor of a different task that has an rdma server. The group is complete.
std::string WhyNotOurs(const tensorflow::CollGroupParams& group);
// Returns why they do not reduce directly; empty if they do: they can, and all have
// RDMA_TRANSPORT_COLLECTIVES=direct.
std::string WhyNotDirect(const tensorflow::CollGroupParams& group);
// Returns the ranks of each host, in order. A member that does not share its memory counts as a
// host of its own. The members can run the collectives of this transport.
std::vector<std::vector<int>> HostsOf(const tensorflow::CollGroupParams& group);

}  // namespace rdma_transport
