#include "fabric/host/identity.h"

#include <gtest/gtest.h>

#include <string>

namespace rdma_transport::fabric::host {
namespace {

const std::string kOwn = "5f0c-11/4026531840/1000";

TEST(IdentityTest, ProcessesOfOneUserOnOneHostCanShareMemory) {
  EXPECT_TRUE(CanShareMemory(HostIdentity()).ok());
  EXPECT_TRUE(CanShareMemory(kOwn, kOwn).ok());
}

TEST(IdentityTest, WhatKeepsProcessesOfOneHostApartIsNamed) {
  const Status user = CanShareMemory("5f0c-11/4026531840/1001", kOwn);
  EXPECT_EQ(user.code(), Code::kPermissionDenied);
  EXPECT_EQ(user.message(),
            "it runs as user 1001, this task as 1000; shared memory is for one user");
  const Status network = CanShareMemory("5f0c-11/4026532000/1000", kOwn);
  EXPECT_EQ(network.code(), Code::kPermissionDenied);
  EXPECT_EQ(network.message(), "it is in another network namespace of this host");
}

TEST(IdentityTest, OtherHostsAndWhatIsNoIdentityAreNotOnThisHost) {
  for (const char* other : {"77aa-22/4026531840/1000", "", "/", "//", "/4026531840/1000", "a/b"}) {
    EXPECT_EQ(CanShareMemory(other, kOwn).code(), Code::kUnavailable) << other;
  }
  const Status named = CanShareMemory("5f0c-11/4026531840/root\n", kOwn);
  EXPECT_EQ(named.message(),
            "it runs as another user, this task as 1000; shared memory is for one user");
}

}  // namespace
}  // namespace rdma_transport::fabric::host
