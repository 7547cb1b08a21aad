// Messages between members: matched as MPI does it, of any size, and over any fabric.
#include "collectives/mesh.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "collectives/mesh_seal.h"
#include "collectives/message_request.h"
#include "members.h"

namespace rdma_transport::collectives {
namespace {

using testing::kSoon;
using testing::Members;

using Request = std::shared_ptr<MessageRequest>;

Patience Soon() { return {Now() + kSoon, nullptr}; }

void ExpectOk(const std::vector<Status>& results) {
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.message();
}

// Pieces of any two places differ, and messages of two seeds.
std::string Bytes(size_t length, int seed) {
  std::string bytes(std::min<size_t>(length, 9973), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>((i * 31 + i / 251 + static_cast<size_t>(seed)) % 253);
  }
  bytes.reserve(length);
  while (bytes.size() < length) {
    bytes.append(bytes, 0, std::min<size_t>(length - bytes.size(), bytes.size() / 9973 * 9973));
  }
  return bytes;
}

Status Send(Mesh* mesh, int peer, int tag, const std::string& bytes) {
  Request request;
  RDMA_RETURN_IF_ERROR(mesh->Send(peer, tag, bytes, true, &request));
  return request == nullptr ? OkStatus() : request->Wait(Soon());
}

struct Received {
  int source = 0;
  int tag = 0;
  std::string bytes;
};

Status Receive(Mesh* mesh, int source, int tag, Received* received) {
  Request request;
  RDMA_RETURN_IF_ERROR(mesh->Receive(source, tag, nullptr, 0, &request));
  RDMA_RETURN_IF_ERROR(request->Wait(Soon()));
  const struct Receive& receive = *request->receive();
  *received = {receive.message.source, receive.message.tag,
               std::string(receive.buffer == nullptr ? "" : receive.buffer,
                           receive.buffer == nullptr ? 0 : receive.message.length)};
  return OkStatus();
}

Request Post(Mesh* mesh, int source, int tag, std::string* into) {
  Request request;
  EXPECT_TRUE(mesh->Receive(source, tag, into->data(), into->size(), &request).ok());
  return request;
}

Request Start(Mesh* mesh, int peer, int tag, const std::string& bytes) {
  Request request;
  const Status started = mesh->Send(peer, tag, bytes, false, &request);
  EXPECT_TRUE(started.ok()) << started.message();
  return request;
}

// Lets the kernel refuse this thread, and those that it starts, to read memory of processes.
bool ForbidReading() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// More than is copied of messages that nobody waits for.
constexpr size_t kBeyondEarly = 12'000'000;

// A group, by its meshes.
struct Meshes {
  explicit Meshes(int size) : members(size) {}
  Mesh* operator[](int rank) const { return members.groups[rank]->mesh(); }
  Members members;
};

TEST(MeshTest, MessagesAreMatchedBySourceAndTag) {
  const Meshes meshes(3);
  const std::string large(300'000, 'x');
  ExpectOk(meshes.members.Each([&](int rank) {
    Mesh* const mesh = meshes[rank];
    if (rank > 0) {
      RDMA_RETURN_IF_ERROR(Send(mesh, 0, 5, ""));
      RDMA_RETURN_IF_ERROR(Send(mesh, 0, 6, large));
      return Send(mesh, 0, 5, std::to_string(rank));
    }
    Received letter;
    for (const int source : {2, 1}) {
      RDMA_RETURN_IF_ERROR(Receive(mesh, source, 6, &letter));
      EXPECT_EQ(letter.bytes, large);
      RDMA_RETURN_IF_ERROR(Receive(mesh, source, kAny, &letter));
      EXPECT_EQ(letter.bytes, "");
      EXPECT_EQ(letter.tag, 5);
    }
    for (int i = 0; i < 2; ++i) {
      RDMA_RETURN_IF_ERROR(Receive(mesh, kAny, 5, &letter));
      EXPECT_EQ(letter.bytes, std::to_string(letter.source));
    }
    Request request;
    EXPECT_EQ(mesh->Receive(7, kAny, nullptr, 0, &request).code(), Code::kInvalidArgument);
    EXPECT_EQ(mesh->Send(7, 1, "", true, &request).code(), Code::kInvalidArgument);
    EXPECT_EQ(mesh->Send(1, -1, "", true, &request).code(), Code::kInvalidArgument);
    RDMA_RETURN_IF_ERROR(Send(mesh, 0, 1, "to itself"));
    RDMA_RETURN_IF_ERROR(Receive(mesh, 0, 1, &letter));
    EXPECT_EQ(letter.bytes, "to itself");
    return OkStatus();
  }));
}

TEST(MeshTest, TheReceiveThatWasPostedFirstGetsTheMessage) {
  const Meshes meshes(2);
  std::vector<std::string> into(5, std::string(8, '-'));
  const std::pair<int, int> wanted[] = {{1, 3}, {kAny, 3}, {1, kAny}, {kAny, kAny}, {1, 3}};
  std::vector<Request> requests;
  for (size_t i = 0; i < into.size(); ++i) {
    requests.push_back(Post(meshes[0], wanted[i].first, wanted[i].second, &into[i]));
  }
  for (const char* const text : {"first", "second"}) {
    ASSERT_TRUE(Send(meshes[1], 0, 3, text).ok());
  }
  ASSERT_TRUE(Send(meshes[1], 0, 4, "third").ok());
  ASSERT_TRUE(Send(meshes[1], 0, 5, "fourth").ok());
  ASSERT_TRUE(Send(meshes[1], 0, 3, "fifth").ok());
  const char* const expected[] = {"first", "second", "third", "fourth", "fifth"};
  for (size_t i = 0; i < into.size(); ++i) {
    ASSERT_TRUE(requests[i]->Wait(Soon()).ok());
    EXPECT_EQ(into[i].substr(0, requests[i]->receive()->message.length), expected[i]);
  }
}

TEST(MeshTest, ThreadsThatWantTheSameMessagesGetOneEach) {
  const Meshes meshes(2);
  constexpr int kThreads = 4;
  constexpr int kRounds = 50;
  std::atomic<int> sum{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        Received letter;
        const Status status = Receive(meshes[0], 1, 7, &letter);
        ASSERT_TRUE(status.ok()) << status.message();
        sum += std::stoi(letter.bytes);
      }
    });
  }
  for (int i = 0; i < kThreads * kRounds; ++i) {
    EXPECT_TRUE(Send(meshes[1], 0, 7, std::to_string(i)).ok());
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kThreads * kRounds * (kThreads * kRounds - 1) / 2);
}

TEST(MeshTest, MessagesOfAnySizeInBothDirections) {
  const Meshes meshes(2);
  const size_t kSizes[] = {1, 65'535, 65'536, 262'144, 262'145, 3'000'001, 20'000'000};
  ExpectOk(meshes.members.Each([&](int rank) {
    const int other = 1 - rank;
    for (const bool posted_first : {true, false}) {
      std::vector<std::string> sent;
      std::vector<std::string> got;
      std::vector<Request> requests;
      for (const size_t size : kSizes) {
        sent.push_back(Bytes(size, rank));
        got.push_back(std::string(size + 3, '-'));
      }
      const auto post = [&](size_t i) {
        requests.push_back(Post(meshes[rank], other, static_cast<int>(i), &got[i]));
      };
      for (size_t i = 0; posted_first && i < sent.size(); ++i) post(i);
      for (size_t i = 0; i < sent.size(); ++i) {
        RDMA_RETURN_IF_ERROR(Send(meshes[rank], other, static_cast<int>(i), sent[i]));
        sent[i].assign(sent[i].size(), '!');  // it may change now
      }
      for (size_t i = sent.size(); !posted_first && i-- > 0;) post(i);
      for (size_t i = 0; i < requests.size(); ++i) {
        const size_t place = posted_first ? i : requests.size() - 1 - i;
        RDMA_RETURN_IF_ERROR(requests[i]->Wait(Soon()));
        EXPECT_EQ(got[place], Bytes(kSizes[place], other) + "---") << kSizes[place];
      }
    }
    return OkStatus();
  }));
}

TEST(MeshTest, AStartedSendNeedsItsBytesUntilTheyAreReceived) {
  const Meshes meshes(2);
  std::string sent = Bytes(kBeyondEarly, 1);
  std::string into(sent.size(), '-');
  const Request request = Start(meshes[0], 1, 1, sent);
  ASSERT_NE(request, nullptr);
  EXPECT_EQ(request->Wait({Now() + kMillisecond, nullptr}).code(), Code::kDeadlineExceeded);
  sent.back() = '!';  // which nobody may do
  ASSERT_TRUE(Post(meshes[1], 0, 1, &into)->Wait(Soon()).ok());
  EXPECT_TRUE(into == sent);
  EXPECT_TRUE(request->Wait(Soon()).ok());
}

void StartManyInBothDirections() {
  const Meshes meshes(2);
  ExpectOk(meshes.members.Each([&](int rank) {
    const int other = 1 - rank;
    constexpr size_t kSizes[] = {65'536, 262'145, 1'000'000, 700'000};
    constexpr int kCount = 24;
    for (const bool posted_first : {true, false}) {
      std::vector<std::string> sent;
      std::vector<std::string> got;
      std::vector<Request> requests;
      for (int i = 0; i < kCount; ++i) {
        sent.push_back(Bytes(kSizes[i % std::size(kSizes)] + static_cast<size_t>(i), rank + i));
        got.push_back(std::string(sent.back().size(), '-'));
      }
      const auto post = [&] {
        for (std::string& each : got) requests.push_back(Post(meshes[rank], other, 1, &each));
      };
      if (posted_first) post();
      for (const std::string& each : sent) {
        if (Request started = Start(meshes[rank], other, 1, each)) requests.push_back(started);
      }
      if (!posted_first) post();
      for (const Request& request : requests) RDMA_RETURN_IF_ERROR(request->Wait(Soon()));
      for (int i = 0; i < kCount; ++i) {
        EXPECT_TRUE(got[i] == Bytes(got[i].size(), other + i)) << i;
      }
      RDMA_RETURN_IF_ERROR(Send(meshes[rank], other, 2, "done"));
      Received done;
      RDMA_RETURN_IF_ERROR(Receive(meshes[rank], other, 2, &done));
    }
    return OkStatus();
  }));
}

TEST(MeshTest, ManyMessagesInFlight) { StartManyInBothDirections(); }

TEST(MeshTest, ManyMessagesInFlightWhereNoProcessMayReadAnother) {
  std::thread([] {
    if (!ForbidReading()) GTEST_SKIP() << "the kernel has no filters of system calls";
    StartManyInBothDirections();
  }).join();
}

TEST(MeshTest, WhatALostMemberDidNotCopyIsLost) {
  Meshes meshes(2);
  const std::string large = Bytes(kBeyondEarly, 3);
  std::string first(large.size(), '-');
  std::string second(large.size(), '-');
  const Request began = Start(meshes[1], 0, 1, large);
  const Request other = Start(meshes[1], 0, 2, large);
  const Patience soon = Soon();
  bool found = false;
  Envelope envelope;
  ASSERT_TRUE(meshes[0]->Probe(1, 2, &soon, &found, &envelope).ok());
  meshes.members.groups[1].reset();
  for (const Request& request : {began, other}) EXPECT_FALSE(request->Wait(Soon()).ok());
  for (const int tag : {1, 2}) {
    Request request = Post(meshes[0], 1, tag, tag == 1 ? &first : &second);
    const Status lost = request->Wait(Soon());
    EXPECT_EQ(lost.code(), Code::kUnavailable);
    EXPECT_NE(lost.message().find("rank 1 is gone"), std::string::npos) << lost.message();
  }
}

TEST(MeshTest, OnlySealedMemoryIsRead) {
  const std::string bytes = Bytes(100'000, 1);
  const auto address = reinterpret_cast<uint64_t>(bytes.data());
  std::string into(bytes.size(), '-');
  const auto reads = [&](const SealPlace& seal, uint64_t from) {
    return ReadSealed(seal, from, into.data(), into.size());
  };
  Seal seal;
  const SealPlace place = seal.place();
  if (!reads(place, address)) GTEST_SKIP() << "the kernel does not permit it";
  EXPECT_TRUE(into == bytes);
  EXPECT_FALSE(reads(place, 4096));
  EXPECT_FALSE(reads({place.process, 4096, place.value}, address));
  EXPECT_FALSE(reads({place.process, place.address, place.value + 1}, address));
  EXPECT_FALSE(reads({}, address));
  seal.Break();
  EXPECT_FALSE(reads(place, address));
  EXPECT_FALSE(reads(seal.place(), address));
}

TEST(MeshTest, AnotherProcessHasNoSuchSeal) {
  Seal ours;
  const std::string bytes(100'000, 'x');
  std::string into(bytes.size(), '-');
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  SealPlace place = ours.place();
  place.process = static_cast<uint64_t>(child);  // which has all that was here
  const auto address = reinterpret_cast<uint64_t>(bytes.data());
  const bool permitted = ReadSealed(place, address, into.data(), into.size());
  const Seal later;
  place.address = later.place().address;
  place.value = later.place().value;
  EXPECT_FALSE(ReadSealed(place, address, into.data(), into.size()));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(ReadSealed(place, address, into.data(), into.size()));
  if (!permitted) GTEST_SKIP() << "the kernel does not permit it";
}

TEST(MeshTest, AReceiverThatIsFarBehindIsAwaitedButNotForOtherMessages) {
  const Meshes meshes(2);
  const std::string large = Bytes(kMaxUnconsumed + 1'000'000, 1);
  const std::string medium = Bytes(1'000'000, 2);
  Request slow;
  Request next;
  Request small;
  ASSERT_TRUE(meshes[1]->Send(0, 1, large, true, &slow).ok());
  ASSERT_TRUE(meshes[1]->Send(0, 2, medium, true, &next).ok());
  ASSERT_TRUE(meshes[1]->Send(0, 3, "small", true, &small).ok());
  ASSERT_NE(slow, nullptr);
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(slow->Wait({Now() + kMillisecond, nullptr}).code(), Code::kDeadlineExceeded);
  const auto interrupted = [] { return true; };
  EXPECT_EQ(slow->Wait({Now() + kSoon, interrupted}).code(), Code::kCancelled);
  Received letter;
  for (const auto& [tag, bytes] :
       {std::pair<int, std::string>{3, "small"}, {2, medium}, {1, large}}) {
    const Status status = Receive(meshes[0], 1, tag, &letter);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(letter.bytes == bytes) << tag;
  }
  EXPECT_TRUE(slow->Wait(Soon()).ok());
  EXPECT_TRUE(next->Wait(Soon()).ok());
}

TEST(MeshTest, AReceiveThatIsWithdrawnGetsNoMessage) {
  const Meshes meshes(2);
  std::string first(8, '-');
  std::string second(8, '-');
  const Request withdrawn = Post(meshes[0], 1, 1, &first);
  EXPECT_EQ(withdrawn->Wait({Now() + kMillisecond, nullptr}).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(withdrawn->Cancel());
  EXPECT_FALSE(withdrawn->Cancel());
  const Request request = Post(meshes[0], 1, 1, &second);
  ASSERT_TRUE(Send(meshes[1], 0, 1, "x").ok());
  ASSERT_TRUE(request->Wait(Soon()).ok());
  EXPECT_FALSE(request->Cancel());
  EXPECT_EQ(second, "x-------");
  EXPECT_EQ(first, "--------");
  EXPECT_FALSE(withdrawn->Test());
}

TEST(MeshTest, AMessageThatIsTooLongIsLost) {
  const Meshes meshes(2);
  for (const size_t length : {size_t{9}, size_t{70'000}, size_t{700'000}, kBeyondEarly}) {
    for (const bool posted_first : {true, false}) {
      std::string into(8, '-');
      Request request;
      if (posted_first) request = Post(meshes[0], 1, 1, &into);
      const std::string sent = Bytes(length, 1);
      const Request sending = Start(meshes[1], 0, 1, sent);
      if (!posted_first) request = Post(meshes[0], 1, 1, &into);
      EXPECT_TRUE(sending == nullptr || sending->Wait(Soon()).ok());
      EXPECT_EQ(request->Wait(Soon()).code(), Code::kInvalidArgument);
      EXPECT_EQ(into, "--------");
    }
  }
  std::string into(8, '-');
  ASSERT_TRUE(Send(meshes[1], 0, 1, "next").ok());
  EXPECT_TRUE(Post(meshes[0], 1, 1, &into)->Wait(Soon()).ok());
  EXPECT_EQ(into, "next----");
}

TEST(MeshTest, AMemberThatLeavesInOrderEndsNoReceiveFromAnyMember) {
  Meshes meshes(3);
  std::string into(4, '-');
  const std::string large = Bytes(kBeyondEarly + 1, 3);
  const Request any = Post(meshes[0], kAny, 9, &into);
  const Request from_it = Post(meshes[0], 1, 9, &into);
  Request sending;
  ASSERT_TRUE(meshes[1]->Send(0, 1, large, false, &sending).ok());
  ASSERT_TRUE(meshes[1]->Drain(nullptr).ok());
  meshes.members.groups[1].reset();
  EXPECT_EQ(from_it->Wait(Soon()).code(), Code::kUnavailable);
  EXPECT_FALSE(any->Test());
  Received letter;  // what it sent before is here
  ASSERT_TRUE(Receive(meshes[0], kAny, 1, &letter).ok());
  EXPECT_TRUE(letter.bytes == large);
  ASSERT_TRUE(Send(meshes[2], 0, 9, "x").ok());
  EXPECT_TRUE(any->Wait(Soon()).ok());
  EXPECT_EQ(into, "x---");
  const Request last = Post(meshes[0], kAny, 9, &into);
  ASSERT_TRUE(meshes[2]->Drain(nullptr).ok());
  EXPECT_EQ(last->Wait(Soon()).code(), Code::kUnavailable);
}

TEST(MeshTest, AGroupEndsWhileItCopiesWhatNobodyReceives) {
  Meshes meshes(2);
  const std::string large = Bytes(30'000'000, 3);
  std::string into(4, '-');
  const Request told = Post(meshes[0], 1, 9, &into);
  Request sending;
  ASSERT_TRUE(meshes[1]->Send(0, 1, large, true, &sending).ok());
  std::thread leaves([&] { meshes[1]->Drain(nullptr).IgnoreError(); });
  EXPECT_EQ(told->Wait(Soon()).code(), Code::kUnavailable);  // it copies from now on
  meshes.members.groups[0].reset();
  leaves.join();
}

TEST(MeshTest, ALostMemberEndsWhatWaitsForIt) {
  Meshes meshes(3);
  std::string into(4, '-');
  const std::string large = Bytes(2 * kMaxUnconsumed, 3);
  const Request any = Post(meshes[0], kAny, kAny, &into);
  const Request from_it = Post(meshes[0], 1, 9, &into);
  const Request from_other = Post(meshes[0], 2, 9, &into);
  Request sending;
  ASSERT_TRUE(meshes[0]->Send(1, 1, large, true, &sending).ok());
  std::thread waiter([&] {
    const Patience soon = Soon();
    bool found = false;
    Envelope envelope;
    EXPECT_EQ(meshes[0]->Probe(1, 8, &soon, &found, &envelope).code(), Code::kUnavailable);
  });
  meshes.members.groups[1].reset();
  for (const Request& request : {any, from_it, sending}) {
    EXPECT_EQ(request->Wait(Soon()).code(), Code::kUnavailable);
    EXPECT_TRUE(request->Test());
  }
  waiter.join();
  bool found = false;
  Envelope envelope;
  EXPECT_EQ(meshes[0]->Probe(kAny, kAny, nullptr, &found, &envelope).code(), Code::kUnavailable);
  EXPECT_TRUE(meshes[0]->Probe(2, kAny, nullptr, &found, &envelope).ok());
  EXPECT_FALSE(found);
  EXPECT_FALSE(from_other->Test());
}

TEST(MeshTest, ProbesFindTheMessageThatAReceiveWouldGet) {
  const Meshes meshes(2);
  ASSERT_TRUE(Send(meshes[1], 0, 1, Bytes(100'000, 1)).ok());
  ASSERT_TRUE(Send(meshes[1], 0, 2, "xy").ok());
  const Patience soon = Soon();
  bool found = false;
  Envelope envelope;
  ASSERT_TRUE(meshes[0]->Probe(kAny, 2, &soon, &found, &envelope).ok());
  EXPECT_TRUE(found && envelope.source == 1 && envelope.tag == 2 && envelope.length == 2);
  ASSERT_TRUE(meshes[0]->Probe(1, kAny, nullptr, &found, &envelope).ok());
  EXPECT_TRUE(found && envelope.tag == 1 && envelope.length == 100'000);
  ASSERT_TRUE(meshes[0]->Probe(1, 3, nullptr, &found, &envelope).ok());
  EXPECT_FALSE(found);
}

TEST(MeshTest, RequestsOutliveTheGroup) {
  std::string into(4, '-');
  const std::string large = Bytes(2 * kMaxUnconsumed, 3);
  Request receive;
  Request send;
  Request alone;
  {
    const Meshes meshes(2);
    receive = Post(meshes[0], 1, 1, &into);
    ASSERT_TRUE(meshes[0]->Send(1, 1, large, false, &send).ok());
    const Meshes single(1);
    alone = Post(single[0], kAny, kAny, &into);
  }
  for (const Request& request : {receive, send, alone}) {
    EXPECT_TRUE(request->Test());
    EXPECT_FALSE(request->Wait(Soon()).ok());
  }
}

}  // namespace
}  // namespace rdma_transport::collectives
