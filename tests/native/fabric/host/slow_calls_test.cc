#include "fabric/host/slow_calls.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace rdma_transport::fabric::host {
namespace {

TEST(SlowCalls, RunsInOrderWithoutTheCaller) {
  SlowCalls calls("rdma_test");
  std::promise<void> release;
  std::vector<int> order;
  std::thread::id thread;
  calls.Add([&, released = release.get_future().share()] {
    released.wait();
    thread = std::this_thread::get_id();
    order.push_back(0);
  });
  for (int i = 1; i < 10; ++i) calls.Add([&, i] { order.push_back(i); });
  release.set_value();
  calls.Wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(SlowCalls, BeginsAgainAfterItHadNothingToDo) {
  SlowCalls calls("rdma_test");
  calls.Wait();
  int count = 0;
  for (int i = 0; i < 1000; ++i) {
    std::promise<void> done;
    calls.Add([&] {
      ++count;
      done.set_value();
    });
    // Its thread is about to end, so the next one meets it in every state.
    done.get_future().wait();
  }
  calls.Wait();
  EXPECT_EQ(count, 1000);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
