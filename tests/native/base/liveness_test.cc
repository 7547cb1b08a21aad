// When a peer counts as silent.
#include "base/liveness.h"

#include <gtest/gtest.h>

namespace rdma_transport {
namespace {

using Verdict = Liveness::Verdict;

class LivenessTest : public ::testing::Test {
 protected:
  // Something waits for the peer, `seconds` after the start.
  Verdict CheckAt(double seconds, bool excuse = false) {
    now_ = kSecond + static_cast<Nanos>(seconds * kSecond);
    return liveness_.Check(now_, kTimeout, excuse);
  }

  static constexpr Nanos kTimeout = 8 * kSecond;
  Nanos now_ = 0;
  Liveness liveness_;
};

TEST_F(LivenessTest, ASilentPeerIsPingedOnceAndThenCountsAsSilent) {
  EXPECT_EQ(CheckAt(0), Verdict::kFine);
  EXPECT_EQ(CheckAt(0.5), Verdict::kFine);
  EXPECT_EQ(CheckAt(1), Verdict::kPing);
  EXPECT_EQ(CheckAt(7.9), Verdict::kFine);
  EXPECT_EQ(CheckAt(8), Verdict::kSilent);
  EXPECT_EQ(liveness_.Silence(now_), 8 * kSecond);
  EXPECT_EQ(CheckAt(9), Verdict::kSilent) << "until it is heard";
}

TEST_F(LivenessTest, AnswersStartTheTimeAgain) {
  CheckAt(0);
  EXPECT_EQ(CheckAt(2), Verdict::kPing);
  liveness_.OnHeard();
  EXPECT_EQ(CheckAt(7), Verdict::kFine);
  EXPECT_EQ(CheckAt(8), Verdict::kPing);
  EXPECT_EQ(CheckAt(14.9), Verdict::kFine) << "7.9 seconds since";
  EXPECT_EQ(CheckAt(15), Verdict::kSilent);
}

TEST_F(LivenessTest, SilenceDoesNotCountWhileNothingWaits) {
  CheckAt(0);
  liveness_.OnIdle();
  EXPECT_EQ(CheckAt(100), Verdict::kFine);
  EXPECT_EQ(CheckAt(101), Verdict::kPing);
}

TEST_F(LivenessTest, SilenceDoesNotCountWhileThisProcessWasStopped) {
  CheckAt(0);
  EXPECT_EQ(CheckAt(100, /*excuse=*/true), Verdict::kFine);
  EXPECT_EQ(CheckAt(101), Verdict::kPing);
  EXPECT_EQ(CheckAt(107.9), Verdict::kFine);
  EXPECT_EQ(CheckAt(108), Verdict::kSilent);
}

TEST_F(LivenessTest, APeerIsNotSilentBeforeItHadTimeToAnswerAPing) {
  CheckAt(0);
  EXPECT_EQ(CheckAt(20), Verdict::kPing) << "the polling thread was busy until now";
  EXPECT_EQ(CheckAt(26.9), Verdict::kFine);
  EXPECT_EQ(CheckAt(27), Verdict::kSilent);
  EXPECT_EQ(liveness_.Silence(now_), 27 * kSecond);
}

}  // namespace
}  // namespace rdma_transport
