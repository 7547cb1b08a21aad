// The fake libibverbs between processes: peers that die or stop, and forked children.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "fake_ibverbs/harness.h"

namespace fake_ibverbs::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What the test asks of another process.
struct Order {
  enum Kind { kConnect, kReceive, kWait, kFill, kCountOf, kWrite, kRead, kState, kExit };
  Kind kind;
  EndAddress address;
  size_t offset;
  size_t length;
  int value;
};
struct Outcome {
  EndAddress address;
  ibv_wc wc;
  uint64_t number;
};

#if defined(__SANITIZE_THREAD__)
constexpr size_t kPeerBytes = 8 << 20;
#else
constexpr size_t kPeerBytes = 64 << 20;
#endif

// The other process: one end, which does as told until its socket closes.
int RunPeer(int fd) {
  EndOptions options;
  options.context = OpenDevice();
  options.bytes = kPeerBytes;
  {
    End end(options);
    Outcome outcome = {end.Address(), {}, 0};
    Order order;
    while (write(fd, &outcome, sizeof(outcome)) == sizeof(outcome) &&
           read(fd, &order, sizeof(order)) == sizeof(order)) {
      outcome = {end.Address(), {}, 0};
      switch (order.kind) {
        case Order::kConnect:
          outcome.number = end.Connect(order.address) ? 1 : 0;
          break;
        case Order::kReceive:
          end.Receive({end.Piece(order.offset, order.length)});
          break;
        case Order::kWait:
          outcome.wc = end.Wait();
          break;
        case Order::kFill:
          std::fill(end.memory.begin(), end.memory.end(), static_cast<char>(order.value));
          break;
        case Order::kCountOf:
          outcome.number = static_cast<uint64_t>(
              std::count(end.memory.begin(), end.memory.end(), static_cast<char>(order.value)));
          break;
        case Order::kWrite:
        case Order::kRead:
          end.Send(order.kind == Order::kRead ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE_WITH_IMM,
                   {end.Piece(order.offset, order.length)}, order.address);
          break;
        case Order::kState:
          outcome.number = end.State();
          break;
        case Order::kExit:
          _exit(0);
      }
    }
  }
  const int failed = ::testing::Test::HasFailure() ? 1 : 0;
  return V().ibv_close_device(options.context) == 0 ? failed : 1;
}

class Peer {
 public:
  Peer() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    fd_ = ends[0];
    const std::string number = std::to_string(ends[1]);
    std::string program = "/proc/self/exe";
    std::vector<std::string> environment = {"FAKE_IBVERBS_PEER=" + number,
                                            "FAKE_IBVERBS=retry_ms=40"};
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    std::vector<char*> pointers;
    for (std::string& entry : environment) pointers.push_back(entry.data());
    pointers.push_back(nullptr);
    char* const arguments[] = {program.data(), nullptr};
    pid = fork();
    if (pid == 0) {
      fcntl(ends[1], F_SETFD, 0);
      execve(program.c_str(), arguments, pointers.data());
      _exit(127);
    }
    close(ends[1]);
    address = Next().address;
  }
  ~Peer() {
    close(fd_);
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, killed ? SIGKILL : 0);
  }
  Outcome Next() {
    Outcome outcome = {};
    EXPECT_EQ(recv(fd_, &outcome, sizeof(outcome), MSG_WAITALL),
              static_cast<ssize_t>(sizeof(outcome)));
    return outcome;
  }
  void Tell(Order order) {
    EXPECT_EQ(write(fd_, &order, sizeof(order)), static_cast<ssize_t>(sizeof(order)));
  }
  Outcome Ask(Order order) {
    Tell(order);
    return Next();
  }

  pid_t pid = -1;
  EndAddress address = {};
  bool killed = false;

 private:
  int fd_ = -1;
};

class TwoProcesses : public FakeIbverbsTest {
 protected:
  void Connect(const EndOptions& options) {
    end_ = &Make(options);
    ASSERT_TRUE(end_->Connect(peer_.address));
    ASSERT_EQ(peer_.Ask({Order::kConnect, end_->Address(), 0, 0, 0}).number, 1U);
  }
  EndOptions Big() {
    EndOptions options = Options();
    options.bytes = kPeerBytes;
    return options;
  }
  Peer peer_;
  End* end_ = nullptr;
};

TEST_F(TwoProcesses, MoveBytesByEveryOpcode) {
  Connect(Big());
  std::fill(end_->memory.begin(), end_->memory.end(), 7);
  peer_.Ask({Order::kReceive, {}, 0, 100, 0});
  peer_.Ask({Order::kReceive, {}, 1000, 100, 0});
  const auto start = steady_clock::now();
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE_WITH_IMM, {end_->Piece(0, kPeerBytes)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);
  RecordProperty("write_ms", static_cast<int>((steady_clock::now() - start) / milliseconds(1)));
  Outcome outcome = peer_.Ask({Order::kWait, {}, 0, 0, 0});
  ExpectDone(outcome.wc, 2, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(outcome.wc.byte_len, kPeerBytes);
  EXPECT_EQ(outcome.wc.imm_data, 0x01020304U);
  EXPECT_EQ(peer_.Ask({Order::kCountOf, {}, 0, 0, 7}).number, kPeerBytes);

  std::fill(end_->memory.begin(), end_->memory.end(), 8);
  ASSERT_EQ(end_->Send(IBV_WR_SEND, {end_->Piece(0, 30), end_->Piece(50, 30)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_SEND);
  ExpectDone(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc, 2, IBV_WC_RECV);
  EXPECT_EQ(peer_.Ask({Order::kCountOf, {}, 0, 0, 8}).number, 60U);

  peer_.Ask({Order::kFill, {}, 0, 0, 9});
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_READ, {end_->Piece(0, kPeerBytes)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_READ);
  EXPECT_EQ(std::count(end_->memory.begin(), end_->memory.end(), 9),
            static_cast<ptrdiff_t>(kPeerBytes));

  // And the other way, both at once.
  ASSERT_EQ(end_->Receive(), 0);
  peer_.Ask({Order::kFill, {}, 0, 0, 10});
  peer_.Tell({Order::kWrite, end_->Address(), 0, kPeerBytes / 2, 0});
  ASSERT_EQ(
      end_->Send(IBV_WR_RDMA_READ, {end_->Piece(kPeerBytes / 2, kPeerBytes / 2)}, peer_.address),
      0);
  peer_.Next();
  std::vector<ibv_wc> both = {end_->Wait(), end_->Wait()};
  if (both[0].wr_id == 2) std::swap(both[0], both[1]);
  ExpectDone(both[0], 1, IBV_WC_RDMA_READ);
  ExpectDone(both[1], 2, IBV_WC_RECV_RDMA_WITH_IMM);
  ExpectDone(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc, 1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(std::count(end_->memory.begin(), end_->memory.end(), 10),
            static_cast<ptrdiff_t>(kPeerBytes));
}

TEST_F(TwoProcesses, WaitForReceivers) {
  Connect(Options());
  ASSERT_EQ(end_->Send(IBV_WR_SEND, {end_->Piece(0, 100)}, peer_.address), 0);
  EXPECT_TRUE(Eventually([] { return Stats().rnr_naks_received > 3; }));
  peer_.Ask({Order::kReceive, {}, 0, 100, 0});
  ExpectDone(end_->Wait(), 1, IBV_WC_SEND);
  ExpectDone(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc, 2, IBV_WC_RECV);
}

TEST_F(TwoProcesses, GuardTheirMemory) {
  Connect(Options());
  EndAddress wrong = peer_.address;
  wrong.addr += kPeerBytes - 5;
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 6)}, wrong), 0);
  EXPECT_EQ(end_->Wait().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(peer_.Ask({Order::kState, {}, 0, 0, 0}).number, static_cast<uint64_t>(IBV_QPS_ERR));
  ExpectNoAsync();
}

TEST_F(TwoProcesses, NoticeDeath) {
  Connect(Big());
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "100"), 0);
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 1)}, peer_.address), 0);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);
  // In the middle of a large one, most likely.
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(end_->Send(IBV_WR_RDMA_READ, {end_->Piece(0, kPeerBytes)}, peer_.address), 0);
  }
  kill(peer_.pid, SIGKILL);
  peer_.killed = true;
  ibv_wc wc = end_->Wait();
  while (wc.status == IBV_WC_SUCCESS) wc = end_->Wait();
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(TwoProcesses, NoticeAStoppedPeerOnlyByItsSilence) {
  Connect(Options());
  kill(peer_.pid, SIGSTOP);
  waitpid(peer_.pid, nullptr, WUNTRACED);
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 1)}, peer_.address), 0);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_TRUE(end_->Quiet());
  kill(peer_.pid, SIGCONT);
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);
}

TEST_F(TwoProcesses, EitherMayLoseItsPath) {
  Connect(Options());
  EXPECT_EQ(Command(peer_.pid, "break_path=1"), "ok");
  ASSERT_EQ(V().fake_ibverbs_set("retry_ms", "60000"), 0);
  ASSERT_EQ(end_->Send(IBV_WR_RDMA_WRITE, {end_->Piece(0, 1)}, peer_.address), 0);
  EXPECT_TRUE(end_->Quiet());
  EXPECT_EQ(Command(peer_.pid, "break_path=0"), "ok");
  ExpectDone(end_->Wait(), 1, IBV_WC_RDMA_WRITE);

  V().fake_ibverbs_break_path(true);
  peer_.Ask({Order::kRead, end_->Address(), 0, 10, 0});
  EXPECT_EQ(peer_.Ask({Order::kWait, {}, 0, 0, 0}).wc.status, IBV_WC_RETRY_EXC_ERR);
}

TEST_F(FakeIbverbsTest, AForkedChildLeavesTheParentAlone) {
  auto [a, b] = Pair();
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  ASSERT_EQ(b.Receive(), 0);
  const pid_t child = fork();
  if (child == 0) {
    // A thread may not be started here under ThreadSanitizer: the wait is for _exit().
    sleep(30);
    _exit(0);
  }
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE_WITH_IMM, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
  ExpectDone(b.Wait(), 2, IBV_WC_RECV_RDMA_WITH_IMM);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

#if !defined(__SANITIZE_THREAD__)
TEST_F(FakeIbverbsTest, AForkedChildHasItsOwn) {
  auto [a, b] = Pair();
  const pid_t child = fork();
  if (child == 0) {
    bool good = a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()) == EIO;
    good = good && V().ibv_dereg_mr(a.mr) == EIO && Stats().contexts == 0;
    ibv_context* context = OpenDevice();
    EndOptions options;
    options.context = context;
    {
      End c(options);
      End d(options);
      good = good && c.Connect(d.Address()) && d.Connect(c.Address());
      good = good && c.Send(IBV_WR_RDMA_WRITE, {c.Piece(0, 1)}, d.Address()) == 0;
      good = good && c.Wait().status == IBV_WC_SUCCESS;
    }
    _exit(good && V().ibv_close_device(context) == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(a.Send(IBV_WR_RDMA_WRITE, {a.Piece(0, 1)}, b.Address()), 0);
  ExpectDone(a.Wait(), 1, IBV_WC_RDMA_WRITE);
}
#endif

}  // namespace
}  // namespace fake_ibverbs::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* peer = std::getenv("FAKE_IBVERBS_PEER");
  if (peer != nullptr) return fake_ibverbs::testing::RunPeer(std::atoi(peer));
  return RUN_ALL_TESTS();
}
