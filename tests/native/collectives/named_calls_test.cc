#include "collectives/named_calls.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>

#include "base/log.h"
#include "collectives/reduce.h"
#include "members.h"

namespace rdma_transport::collectives {
namespace {

using testing::kSoon;
using testing::Members;

// Calls of one member that have not ended.
class Pending {
 public:
  explicit Pending(NamedCalls* calls) : calls_(calls) {}
  ~Pending() { EXPECT_TRUE(Wait()); }

  // `check` is called with the result.
  void Start(NamedCall call, std::function<void(const Status&, const NamedResult&)> check) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      ++left_;
    }
    call.done = [this, check = std::move(check), ended = false](const Status& status,
                                                                const NamedResult& result) mutable {
      EXPECT_FALSE(std::exchange(ended, true)) << "called twice";
      check(status, result);
      std::lock_guard<std::mutex> lock(mu_);
      --left_;
      changed_.notify_all();
    };
    calls_->Start(std::move(call));
  }
  bool Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kSoon), [this] { return left_ == 0; });
  }
  bool done() {
    std::lock_guard<std::mutex> lock(mu_);
    return left_ == 0;
  }

 private:
  NamedCalls* const calls_;
  std::mutex mu_;
  std::condition_variable changed_;
  int left_ = 0;
};

// Each member's end.
struct Ends {
  explicit Ends(int size, NamedOptions options = {})
      : Ends(std::make_unique<Members>(size), options) {}
  explicit Ends(std::unique_ptr<Members> made, const NamedOptions& options = {})
      : members(std::move(made)) {
    for (auto& group : members->groups) {
      calls.push_back(std::make_unique<NamedCalls>(std::move(group), options));
    }
  }
  ~Ends() {
    members->Each([this](int rank) {
      if (calls[rank] != nullptr) calls[rank]->Close("the test has ended");
      return OkStatus();
    });
  }
  std::vector<Status> Each(const std::function<Status(int)>& what) const {
    return members->Each(what);
  }

  std::unique_ptr<Members> members;
  std::vector<std::unique_ptr<NamedCalls>> calls;
};

void ExpectOk(const std::vector<Status>& results) {
  for (const Status& result : results) EXPECT_TRUE(result.ok()) << result.message();
}

// Runs one call to its end.
Status RunOne(NamedCalls* calls, NamedCall call, NamedResult* result = nullptr) {
  Status status;
  Pending pending(calls);
  pending.Start(std::move(call), [&](const Status& ended, const NamedResult& its) {
    status = ended;
    if (result != nullptr) *result = its;
  });
  if (!pending.Wait()) return Status(Code::kDeadlineExceeded, "the call did not end");
  return status;
}

NamedCall Sum(const std::string& name, const std::vector<float>& input,
              std::vector<float>* output) {
  NamedCall call;
  call.name = name;
  call.collective = Collective::kAllReduce;
  NamedArray array;
  array.input = reinterpret_cast<const char*>(input.data());
  array.output = reinterpret_cast<char*>(output->data());
  array.rows = input.size();
  array.row_length = 1;
  array.shape = {input.size()};
  call.arrays.push_back(array);
  return call;
}

NamedCall Barrier(const std::string& name) {
  NamedCall call;
  call.name = name;
  return call;
}

NamedCall Join() {
  NamedCall call;
  call.joins = true;
  return call;
}

// A random collective: the same one on all members that have the same number, with data by rank.
class Random {
 public:
  Random(int number, int size, int rank) : size_(size), rank_(rank), random_(number * 7919 + 13) {
    constexpr Collective kKinds[] = {Collective::kAllReduce,     Collective::kAllReduce,
                                     Collective::kAllReduce,     Collective::kAllGather,
                                     Collective::kBroadcast,     Collective::kAllToAll,
                                     Collective::kReduceScatter, Collective::kBarrier};
    kind_ = kKinds[Below(8)];
    dtype_ = kTypes[Below(4)];
    op_ = static_cast<ReduceOp>(Below(4));
    root_ = static_cast<int>(Below(static_cast<size_t>(size)));
    average_ = op_ == ReduceOp::kSum && Below(3) == 0;
    prescale_ = Below(4) == 0 ? 2.0 : 1.0;
    postscale_ = Below(4) == 0 ? 0.5 : 1.0;
    const bool grouped = kind_ == Collective::kAllReduce || kind_ == Collective::kAllGather ||
                         kind_ == Collective::kReduceScatter;
    const size_t arrays = kind_ == Collective::kBarrier ? 0 : grouped && Below(3) == 0 ? 3 : 1;
    name_ = "call/" + std::to_string(number);
    for (size_t i = 0; i < arrays; ++i) {
      const size_t row = 1 + Below(5);
      std::vector<size_t> rows(static_cast<size_t>(size), Below(30) == 0 ? 20'000 : Below(500));
      const bool uneven = kind_ == Collective::kAllGather || kind_ == Collective::kAllToAll;
      for (size_t& each : rows) each = uneven && Below(2) == 0 ? Below(800) : each;
      rows_.push_back(rows);
      row_.push_back(row);
      inputs_.emplace_back();
      for (int each = 0; each < size; ++each) {
        std::string bytes(rows[static_cast<size_t>(each)] * row * SizeOf(dtype_), '\0');
        for (size_t at = 0; at < bytes.size(); at += 4) {
          const uint32_t word = random_();
          std::memcpy(&bytes[at], &word, std::min<size_t>(4, bytes.size() - at));
        }
        if (dtype_ == DType::kFloat32) {
          for (size_t at = 0; at < bytes.size(); at += 4) {
            const float value = static_cast<float>(static_cast<int>(random_() % 2001) - 1000) / 7;
            std::memcpy(&bytes[at], &value, 4);
          }
        }
        inputs_.back().push_back(std::move(bytes));
      }
    }
    if (kind_ == Collective::kAllToAll) {
      for (size_t from = 0; from < static_cast<size_t>(size); ++from) {
        std::vector<uint64_t> splits(static_cast<size_t>(size));
        size_t left = rows_[0][from];
        for (uint64_t& each : splits) left -= each = Below(left + 1);
        splits.back() += left;
        splits_.push_back(splits);
      }
    }
    outputs_.resize(arrays);
  }

  NamedCall Make() {
    NamedCall call;
    call.name = name_;
    call.collective = kind_;
    call.dtype = dtype_;
    call.op = op_;
    call.root = root_;
    if (Reduces()) {
      call.average = average_;
      call.prescale = prescale_;
      call.postscale = postscale_;
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      NamedArray array;
      const auto me = static_cast<size_t>(rank_);
      array.input = inputs_[i][me].data();
      array.rows = rows_[i][me];
      array.row_length = row_[i];
      array.shape = {array.rows, array.row_length};
      if (kind_ == Collective::kAllReduce || kind_ == Collective::kBroadcast) {
        outputs_[i].resize(inputs_[i][me].size());
        array.output = outputs_[i].data();
      }
      call.arrays.push_back(array);
    }
    if (!splits_.empty()) call.splits = splits_[static_cast<size_t>(rank_)];
    call.allocate = [this](size_t array, uint64_t rows) {
      outputs_[array].resize(rows * row_[array] * SizeOf(dtype_));
      return outputs_[array].data();
    };
    return call;
  }

  std::string Text() const {
    return name_ + ": " + NameOf(kind_) + " of " + NameOf(dtype_) + " " + NameOf(op_);
  }

  bool Right(const NamedResult& result) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] != Expected(i)) return false;
    }
    if (kind_ == Collective::kAllGather) {
      return std::equal(rows_[0].begin(), rows_[0].end(), result.rows.begin(), result.rows.end());
    }
    if (kind_ != Collective::kAllToAll) return true;
    for (size_t from = 0; from < splits_.size(); ++from) {
      if (result.rows[from] != splits_[from][static_cast<size_t>(rank_)]) return false;
    }
    return true;
  }

 private:
  static constexpr DType kTypes[] = {DType::kFloat32, DType::kInt32, DType::kUint8, DType::kInt64};

  size_t Below(size_t end) { return random_() % end; }
  bool Reduces() const {
    return kind_ == Collective::kAllReduce || kind_ == Collective::kReduceScatter;
  }

  std::string Expected(size_t i) const {
    std::string all;
    const size_t row = row_[i] * SizeOf(dtype_);
    const auto me = static_cast<size_t>(rank_);
    if (kind_ == Collective::kBroadcast) return inputs_[i][static_cast<size_t>(root_)];
    if (kind_ == Collective::kAllGather) {
      for (const std::string& each : inputs_[i]) all += each;
      return all;
    }
    if (kind_ == Collective::kAllToAll) {
      for (size_t from = 0; from < splits_.size(); ++from) {
        const auto& splits = splits_[from];
        const auto before = std::accumulate(splits.begin(), splits.begin() + rank_, uint64_t{0});
        all += inputs_[i][from].substr(before * row, splits[me] * row);
      }
      return all;
    }
    all = Reduced(i);
    if (kind_ == Collective::kAllReduce) return all;
    const size_t rows = rows_[i][0];
    const auto size = static_cast<size_t>(size_);
    const size_t begin = me * (rows / size) + std::min(me, rows % size);
    return all.substr(begin * row, (rows / size + (me < rows % size)) * row);
  }

  template <typename T>
  void ScaleAll(std::string* bytes, double factor, int divisor) const {
    auto* const values = reinterpret_cast<T*>(bytes->data());
    for (size_t k = 0; k < bytes->size() / sizeof(T); ++k) {
      values[k] = static_cast<T>(values[k] / static_cast<T>(divisor));
      if (factor == 1.0) continue;
      if constexpr (std::is_floating_point_v<T>) {
        values[k] *= static_cast<T>(factor);
      } else {
        const long double product =
            static_cast<long double>(static_cast<double>(values[k]) * factor);
        const long double low = std::numeric_limits<T>::min();
        const long double high = std::numeric_limits<T>::max();
        values[k] = product >= high  ? std::numeric_limits<T>::max()
                    : product <= low ? std::numeric_limits<T>::min()
                                     : static_cast<T>(product);
      }
    }
  }
  void Scales(std::string* bytes, double factor, int divisor) const {
    if (dtype_ == DType::kFloat32) return ScaleAll<float>(bytes, factor, divisor);
    if (dtype_ == DType::kInt32) return ScaleAll<int32_t>(bytes, factor, divisor);
    if (dtype_ == DType::kInt64) return ScaleAll<int64_t>(bytes, factor, divisor);
    ScaleAll<uint8_t>(bytes, factor, divisor);
  }

  std::string Reduced(size_t i) const {
    std::vector<std::string> inputs = inputs_[i];
    std::vector<const char*> sources;
    for (std::string& each : inputs) {
      Scales(&each, prescale_, 1);
      sources.push_back(each.data());
    }
    std::string sum(inputs[0].size(), '\0');
    Reduce(dtype_, op_, sources, sum.size() / SizeOf(dtype_), sum.data(), nullptr);
    Scales(&sum, postscale_, average_ ? size_ : 1);
    return sum;
  }

  const int size_;
  const int rank_;
  std::mt19937 random_;
  Collective kind_;
  DType dtype_;
  ReduceOp op_;
  int root_;
  bool average_;
  double prescale_;
  double postscale_;
  std::string name_;
  std::vector<std::vector<size_t>> rows_;  // by array and rank
  std::vector<size_t> row_;
  std::vector<std::vector<std::string>> inputs_;
  std::vector<std::vector<uint64_t>> splits_;
  std::vector<std::string> outputs_;
};

class NamedCallsTest : public ::testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, NamedCallsTest, ::testing::Values(1, 2, 3, 4));

// Each member starts them in an order of its own, now and then with a pause.
TEST_P(NamedCallsTest, AnyOrder) {
  constexpr int kCalls = 300;
  const Ends ends(size());
  ExpectOk(ends.Each([&](int rank) {
    std::deque<Random> calls;
    for (int i = 0; i < kCalls; ++i) calls.emplace_back(i, size(), rank);
    std::vector<size_t> order(calls.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937 random(static_cast<uint32_t>(rank + 1));
    std::shuffle(order.begin(), order.end(), random);
    std::atomic<int> wrong{0};
    Pending pending(ends.calls[rank].get());
    for (const size_t i : order) {
      if (random() % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      pending.Start(calls[i].Make(),
                    [&wrong, each = &calls[i]](const Status& status, const NamedResult& result) {
                      EXPECT_TRUE(status.ok()) << each->Text() << ": " << status.message();
                      if (status.ok() && !each->Right(result) && wrong++ == 0)
                        ADD_FAILURE() << each->Text();
                    });
    }
    pending.Wait();
    return wrong == 0 ? OkStatus() : Status(Code::kInternal, std::to_string(wrong) + " are wrong");
  }));
}

TEST(NamedCallsErrors, MembersThatDifferGetAnErrorAndTheOthersGoOn) {
  const Ends ends(3);
  const std::vector<Status> results = ends.Each([&](int rank) {
    NamedCalls* const calls = ends.calls[rank].get();
    std::vector<float> input(rank == 1 ? 3 : 4, 1);
    std::vector<float> output(4);
    Status differs;
    Pending pending(calls);
    pending.Start(Sum("grad/w", input, &output),
                  [&](const Status& status, const NamedResult&) { differs = status; });
    const std::vector<float> other(7, 2);
    std::vector<float> sum(7);
    EXPECT_TRUE(RunOne(calls, Sum("grad/b", other, &sum)).ok());
    EXPECT_EQ(sum, std::vector<float>(7, 6));
    pending.Wait();
    NamedCall call = Sum("mean", other, &sum);
    call.average = rank != 2;
    EXPECT_EQ(RunOne(calls, call).code(), Code::kInvalidArgument);
    call.average = false;
    call.prescale = rank == 0 ? 2.0 : 1.0;
    EXPECT_EQ(RunOne(calls, call).code(), Code::kInvalidArgument);
    call = Sum("ranks", other, &sum);
    if (rank == 0) call.arrays[0].shape = {7, 1};
    EXPECT_EQ(RunOne(calls, call).code(), Code::kInvalidArgument);
    call = rank == 0 ? Barrier("kind") : Sum("kind", other, &sum);
    EXPECT_EQ(RunOne(calls, call).code(), Code::kInvalidArgument);
    EXPECT_TRUE(RunOne(calls, Barrier("kind")).ok());
    return differs;
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "rank 1 calls all_reduce of float32 [3] (sum) as 'grad/w', and rank 0 all_reduce of "
              "float32 [4] (sum): all ranks must call the same under a name");
  }
}

TEST(NamedCallsErrors, ACallThatIsWrongOnOneMemberEndsOnAll) {
  const Ends ends(2);
  const std::vector<Status> results = ends.Each([&](int rank) {
    std::vector<float> input(4, 1);
    std::vector<float> output(4);
    NamedCall call = Sum("w", input, &output);
    call.collective = Collective::kAllToAll;
    call.allocate = [&](size_t, uint64_t) { return reinterpret_cast<char*>(output.data()); };
    call.splits = {2, rank == 0 ? uint64_t{2} : uint64_t{3}};
    return RunOne(ends.calls[rank].get(), call);
  });
  for (const Status& status : results) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("'w' of rank 1: all_to_all: 2 splits of 5 rows"),
              std::string::npos)
        << status.message();
  }
}

// Both fail on the member, whatever the others do meanwhile, and the second one on all.
TEST(NamedCallsErrors, ANameThatIsUsedTwiceAtOnceFails) {
  const Ends ends(2);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<bool> both{false};
    ExpectOk(ends.Each([&](int rank) {
      NamedCalls* const calls = ends.calls[rank].get();
      std::vector<Status> ended(2);
      {
        Pending pending(calls);
        while (rank == 1 && !both.load()) std::this_thread::yield();
        for (Status& end : ended) {
          pending.Start(Barrier("twice"),
                        [&end](const Status& status, const NamedResult&) { end = status; });
        }
        both.store(true);
      }
      for (int i = rank; i < 2; ++i) {
        EXPECT_EQ(ended[i].code(), Code::kInvalidArgument);
        EXPECT_NE(ended[i].message().find("uses the name 'twice' twice at once"), std::string::npos)
            << ended[i].message();
      }
      return RunOne(calls, Barrier("after"));
    }));
  }
}

TEST(NamedCallsErrors, NoMemoryForAnOutputFailsOnThatMemberOnly) {
  const Ends ends(2);
  const std::vector<Status> results = ends.Each([&](int rank) {
    std::vector<float> input(4, 1);
    std::vector<float> output(8);
    NamedCall call = Sum("w", input, &output);
    call.collective = Collective::kAllGather;
    call.allocate = [&](size_t, uint64_t) {
      return rank == 0 ? nullptr : reinterpret_cast<char*>(output.data());
    };
    const Status status = RunOne(ends.calls[rank].get(), call);
    EXPECT_TRUE(RunOne(ends.calls[rank].get(), Barrier("after")).ok());
    return status;
  });
  EXPECT_EQ(results[0].code(), Code::kResourceExhausted);
  EXPECT_TRUE(results[1].ok()) << results[1].message();
}

// Ranks 1 and 2 join early.
TEST(NamedCallsJoin, MembersThatHaveJoinedAddZeros) {
  const Ends ends(3);
  ExpectOk(ends.Each([&](int rank) {
    NamedCalls* const calls = ends.calls[rank].get();
    for (int round = 0; round < 2; ++round) {
      NamedResult joined;
      if (rank != 0) {
        RDMA_RETURN_IF_ERROR(RunOne(calls, Join(), &joined));
        EXPECT_EQ(joined.last, 0);
        continue;
      }
      const std::vector<float> small(5, 3);
      const std::vector<float> large(40'000, 6);
      std::vector<float> small_sum(5);
      std::vector<float> large_sum(40'000);
      NamedCall call = Sum("both", small, &small_sum);
      call.arrays.push_back(Sum("both", large, &large_sum).arrays[0]);
      call.average = true;
      RDMA_RETURN_IF_ERROR(RunOne(calls, call));
      EXPECT_EQ(small_sum, std::vector<float>(5, 1));
      EXPECT_EQ(large_sum, std::vector<float>(40'000, 2));
      RDMA_RETURN_IF_ERROR(RunOne(calls, Sum("one", small, &small_sum)));
      EXPECT_EQ(small_sum, small);
      call = Sum("scatter", small, &small_sum);
      call.collective = Collective::kReduceScatter;
      call.allocate = [&](size_t, uint64_t) { return reinterpret_cast<char*>(large_sum.data()); };
      RDMA_RETURN_IF_ERROR(RunOne(calls, call));
      EXPECT_EQ(large_sum[0], 3);
      EXPECT_EQ(large_sum[2], 2);
      call.name = "all";
      call.collective = Collective::kAllGather;
      const Status gathered = RunOne(calls, call);
      EXPECT_EQ(gathered.code(), Code::kInvalidArgument);
      EXPECT_NE(gathered.message().find("rank 1 has joined"), std::string::npos);
      call = Sum("least", small, &small_sum);
      call.op = ReduceOp::kMin;
      EXPECT_EQ(RunOne(calls, call).code(), Code::kInvalidArgument);
      RDMA_RETURN_IF_ERROR(RunOne(calls, Join(), &joined));
      EXPECT_EQ(joined.last, 0);
    }
    return RunOne(calls, Barrier("after"));
  }));
}

// Lines that are logged while this exists.
class Lines {
 public:
  Lines() {
    all_.clear();
    SetLogSink([](LogLevel, const std::string& line) {
      std::lock_guard<std::mutex> lock(mu_);
      all_.push_back(line);
    });
  }
  ~Lines() { SetLogSink(nullptr); }
  std::vector<std::string> all() const {
    std::lock_guard<std::mutex> lock(mu_);
    return all_;
  }

 private:
  static inline std::mutex mu_;
  static inline std::vector<std::string> all_;
};

TEST(NamedCallsStalls, AreLoggedAndFailOnAllMembersThatWait) {
  const Lines lines;
  NamedOptions options;
  options.ranks = {4, 5, 6};
  options.stall_warning = 50 * kMillisecond;
  options.stall_timeout = 1 * kSecond;
  const Ends ends(3, options);
  const std::vector<Status> results = ends.Each([&](int rank) {
    NamedCalls* const calls = ends.calls[rank].get();
    if (rank == 1) return RunOne(calls, Barrier("together"));
    Pending pending(calls);
    Status late;
    pending.Start(Barrier("late"),
                  [&](const Status& status, const NamedResult&) { late = status; });
    EXPECT_TRUE(RunOne(calls, Barrier("together")).ok());
    pending.Wait();
    return late;
  });
  EXPECT_TRUE(results[1].ok()) << results[1].message();
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), Code::kDeadlineExceeded);
    EXPECT_NE(results[rank].message().find("rank 5 did not call it"), std::string::npos)
        << results[rank].message();
  }
  std::string logged;  // on a busy machine, also of members and calls that are only slow
  for (const std::string& line : lines.all()) logged += line + "\n";
  for (const char* part : {"did not call them: '", "'late' for rank", "5"}) {
    EXPECT_NE(logged.find(part), std::string::npos) << logged;
  }
}

// A member that does not take part in rounds at all, like one whose process was stopped.
TEST(NamedCallsStalls, AMemberThatDoesNotAnswerIsLoggedAndEndsTheGroup) {
  const Lines lines;
  NamedOptions options;
  options.ranks = {4, 5};
  options.stall_warning = 200 * kMillisecond;
  options.stall_timeout = 400 * kMillisecond;
  const Ends ends(2, options);
  std::atomic<bool> failed{false};
  const std::vector<Status> results = ends.Each([&](int rank) {
    NamedCalls* const calls = ends.calls[rank].get();
    Status first;
    {
      Pending pending(calls);
      pending.Start(Barrier("first"), [&](const Status& status, const NamedResult&) {
        first = status;
        while (rank == 1 && !failed.load()) std::this_thread::yield();
      });
    }
    EXPECT_TRUE(first.ok()) << first.message();
    const Status second = RunOne(calls, Barrier("second"));
    failed.store(true);
    // The first one had called that before it gave up.
    return rank == 0 ? second : RunOne(calls, Barrier("third"));
  });
  EXPECT_EQ(results[0].code(), Code::kDeadlineExceeded);
  ASSERT_FALSE(lines.all().empty());
  for (const std::string& text : {results[0].message(), lines.all()[0]}) {
    EXPECT_NE(text.find("rank 5 did not answer for"), std::string::npos) << text;
    EXPECT_NE(text.find("pending: 'second'"), std::string::npos) << text;
  }
  EXPECT_EQ(results[1].code(), Code::kUnavailable);
  EXPECT_NE(results[1].message().find("rank 4 is gone"), std::string::npos) << results[1].message();
}

TEST(NamedCallsEnd, AMemberThatIsGoneEndsTheCallsOfAllOthers) {
  Ends ends(3);
  std::atomic<int> waiting{0};
  const std::vector<Status> results = ends.Each([&](int rank) {
    if (rank == 1) {
      EXPECT_TRUE(RunOne(ends.calls[1].get(), Barrier("first")).ok());
      while (waiting.load() < 2) std::this_thread::yield();
      ends.members->Cut(1, 0);
      ends.members->Cut(1, 2);
      return OkStatus();
    }
    NamedCalls* const calls = ends.calls[rank].get();
    EXPECT_TRUE(RunOne(calls, Barrier("first")).ok());
    Status status;
    Pending pending(calls);
    pending.Start(Barrier("second"), [&](const Status& its, const NamedResult&) { status = its; });
    ++waiting;
    pending.Wait();
    const Status later = RunOne(calls, Barrier("third"));
    EXPECT_EQ(later.code(), Code::kUnavailable);
    EXPECT_EQ(later.message(), status.message());
    return status;
  });
  for (const int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), Code::kUnavailable) << results[rank].message();
    EXPECT_NE(results[rank].message().find("rank 1 is gone"), std::string::npos)
        << results[rank].message();
  }
}

TEST(NamedCallsEnd, CloseCancelsAndTellsThoseThatWait) {
  Ends ends(3);
  const std::vector<Status> results = ends.Each([&](int rank) {
    NamedCalls* const calls = ends.calls[rank].get();
    EXPECT_TRUE(RunOne(calls, Barrier("first")).ok());
    if (rank == 0) {
      Status status;
      Pending pending(calls);
      pending.Start(Barrier("mine"), [&](const Status& its, const NamedResult&) { status = its; });
      calls->Close("the program ended");
      EXPECT_TRUE(pending.done());
      EXPECT_EQ(RunOne(calls, Barrier("late")).code(), Code::kCancelled);
      return status;
    }
    return rank == 1 ? RunOne(calls, Barrier("second")) : OkStatus();
  });
  EXPECT_EQ(results[0].code(), Code::kCancelled);
  EXPECT_EQ(results[0].message(), "the program ended");
  EXPECT_EQ(results[1].code(), Code::kUnavailable);
  for (const char* part : {"rank 0 is gone", "the program ended"}) {
    EXPECT_NE(results[1].message().find(part), std::string::npos) << results[1].message();
  }
}

// Members close right after their last call, while others may still carry it out.
TEST(NamedCallsEnd, ACleanCloseDisturbsNobody) {
  for (int i = 0; i < 20; ++i) {
    Ends ends(3);
    ExpectOk(ends.Each([&](int rank) {
      std::vector<float> input(30'000, 1);
      std::vector<float> output(30'000);
      NamedCall call = Sum("last", input, &output);
      const Status status = RunOne(ends.calls[rank].get(), call);
      ends.calls[rank]->Close("done");
      EXPECT_EQ(output.back(), 3);
      return status;
    }));
  }
}

// More than members announce in one round.
TEST(NamedCallsMany, ManyAtOnce) {
  const Ends ends(2);
  ExpectOk(ends.Each([&](int rank) {
    constexpr int kCalls = 5000;
    std::atomic<int> failed{0};
    Pending pending(ends.calls[rank].get());
    for (int i = 0; i < kCalls; ++i) {
      const int number = rank == 0 ? i : kCalls - 1 - i;
      pending.Start(Barrier(std::to_string(number)),
                    [&](const Status& status, const NamedResult&) { failed += !status.ok(); });
    }
    pending.Wait();
    return failed == 0 ? OkStatus() : Status(Code::kInternal, "some failed");
  }));
}

// Returns members that sleep as soon as they have nothing to do: they do not spin, nor pause, as
// where they have fewer processors than members.
std::unique_ptr<Members> Sleepers(int size) {
  cpu_set_t all;
  cpu_set_t one;
  CPU_ZERO(&all);
  CPU_ZERO(&one);
  EXPECT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_SET(first, &one);
  EXPECT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  const std::vector<testing::FabricNames> fabrics(static_cast<size_t>(size),
                                                  {testing::FabricSettings().fabric});
  auto members = std::make_unique<Members>(fabrics, /*spin=*/0);
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  return members;
}

// Only the first one's steps wake the others. It takes them at about the time at which they go to
// sleep. A wake-up that is lost is a call that does not end. Over cards, which are slow here, they
// are woken as over the loopback fabric.
TEST_P(NamedCallsTest, NoWakeUpIsLost) {
  NamedOptions options;
  options.stall_warning = 0;
  const Ends ends(Sleepers(size()), options);
  ExpectOk(ends.Each([&](int rank) {
    NamedCalls* const calls = ends.calls[rank].get();
    std::mt19937 random(7);
    const std::vector<float> input(1, 5);
    std::vector<float> output(1);
    const int steps = testing::OnCard() ? 200 : 2000;
    for (int i = 0; i < steps && rank == 0; ++i) {
      const auto pause = static_cast<Nanos>(random() % 10'000);
      for (const Nanos until = Now() + pause; Now() < until;) continue;
      RDMA_RETURN_IF_ERROR(RunOne(calls, Sum("sum", input, &output)));
      EXPECT_EQ(output, input);
    }
    return RunOne(calls, Join());
  }));
}

TEST(NamedCallsEnd, AForkedChildGetsAnError) {
  const Ends ends(1);
  EXPECT_TRUE(RunOne(ends.calls[0].get(), Barrier("before")).ok());
  const pid_t child = fork();
  if (child == 0) {
    Code code = Code::kOk;
    NamedCall call = Barrier("child");
    call.done = [&](const Status& status, const NamedResult&) { code = status.code(); };
    ends.calls[0]->Start(std::move(call));
    ends.calls[0]->Close("in a child");
    _exit(code == Code::kFailedPrecondition ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(RunOne(ends.calls[0].get(), Barrier("after")).ok());
}

}  // namespace
}  // namespace rdma_transport::collectives
