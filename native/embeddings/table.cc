#include "embeddings/table.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"
#include "collectives/per_process.h"

namespace rdma_transport::embeddings {
namespace {

using collectives::Patience;

struct Published {
  std::mutex mu;
  std::map<int, std::shared_ptr<Table>> tables;
};

Published& AllPublished() {
  static collectives::PerProcess<Published> all;
  return all.Get();
}

Layout LayoutOf(const TableOptions& options, const collectives::Mesh& mesh) {
  return {options.rows, options.dim, options.type, static_cast<uint64_t>(mesh.rank()),
          static_cast<uint64_t>(mesh.size())};
}

}  // namespace

// What waits for the thread of a table, which may be the one that drops the table.
struct Table::Work {
  std::mutex mu;
  std::condition_variable changed;
  std::deque<std::function<void()>> pending;
  bool stop = false;
  std::thread thread;

  void Loop() {
    std::unique_lock<std::mutex> lock(mu);
    while (true) {
      changed.wait(lock, [this] { return stop || !pending.empty(); });
      if (pending.empty()) return;
      std::function<void()> next = std::move(pending.front());
      pending.pop_front();
      lock.unlock();
      next();
      next = nullptr;
      lock.lock();
    }
  }
};

Table::Table(std::shared_ptr<collectives::CallQueue> group, const TableOptions& options)
    : group_(std::move(group)),
      options_(options),
      layout_(LayoutOf(options, *group_->mesh())),
      owner_(getpid()),
      reader_(group_->mesh(), layout_, options.name),
      work_(std::make_shared<Work>()) {}

Status Table::Open(std::shared_ptr<collectives::CallQueue> group, const TableOptions& options,
                   std::shared_ptr<Table>* table) {
  std::shared_ptr<Table> made(new Table(std::move(group), options));
  collectives::Mesh* const mesh = made->group_->mesh();
  RDMA_RETURN_IF_ERROR(
      Shard::Open(mesh->device(), made->layout_, options.optimizer, &made->shard_));
  RDMA_RETURN_IF_ERROR(mesh->Share(made->shard_->key(), made->shard_->length()));
  RDMA_RETURN_IF_ERROR(mesh->ShareWithRemote(made->shard_->key()));
  *table = std::move(made);
  return OkStatus();
}

Table::~Table() {
  {
    std::lock_guard<std::mutex> lock(work_->mu);
    work_->stop = true;
    work_->changed.notify_all();
  }
  if (work_->thread.get_id() == std::this_thread::get_id()) {
    work_->thread.detach();
  } else if (work_->thread.joinable()) {
    work_->thread.join();
  }
  if (shard_ != nullptr) group_->mesh()->Withdraw(shard_->key());
}

Status Table::Attach(const std::vector<uint64_t>& keys, const Patience& patience) {
  return reader_.Attach(*shard_, keys, patience);
}

Status Table::CheckOurs() const {
  if (owner_ == getpid()) return OkStatus();
  return Status(Code::kFailedPrecondition,
                "table '" + options_.name + "' belongs to the process that forked this one");
}

Status Table::Lookup(const Ids& ids, char* out, const Patience& patience) const {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::vector<uint64_t> rows;
  RDMA_RETURN_IF_ERROR(RowsOf(ids, options_.rows, options_.name, &rows));
  return reader_.Read(rows, out, patience);
}

Status Table::Sum(const Ids& ids, const char* gradients, RowGradients* made) const {
  RDMA_RETURN_IF_ERROR(CheckOurs());
  std::vector<uint64_t> rows;
  RDMA_RETURN_IF_ERROR(RowsOf(ids, options_.rows, options_.name, &rows));
  made->grouped = GroupByOwner(rows, static_cast<int>(layout_.ranks));
  const size_t bytes = row_bytes();
  made->sums.assign((made->grouped.rows.size() * bytes + 7) / 8, 0);
  char* const sums = reinterpret_cast<char*>(made->sums.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    AddTo(options_.type, options_.dim, gradients + i * bytes,
          sums + made->grouped.place[i] * bytes);
  }
  return OkStatus();
}

Status Table::Apply(const Ids& ids, const char* gradients) {
  RowGradients summed;
  RDMA_RETURN_IF_ERROR(Sum(ids, gradients, &summed));
  std::vector<uint64_t>& rows = summed.grouped.rows;
  if (summed.grouped.counts[layout_.rank] != rows.size()) {
    return Status(Code::kInvalidArgument, "table '" + options_.name + "': rank " +
                                              std::to_string(layout_.rank) +
                                              " was sent gradients of rows of another rank");
  }
  for (uint64_t& row : rows) row /= layout_.ranks;
  shard_->Update(rows, reinterpret_cast<const char*>(summed.sums.data()),
                 1.0 / static_cast<double>(layout_.ranks));
  return OkStatus();
}

void Table::RunLater(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(work_->mu);
  work_->pending.push_back(std::move(work));
  if (!work_->thread.joinable()) {
    work_->thread = QuietThread("rdma_embedding", [own = work_] { own->Loop(); });
  }
  work_->changed.notify_all();
}

void Table::Publish(int number, std::shared_ptr<Table> table) {
  Published& all = AllPublished();
  std::shared_ptr<Table> removed;  // destroyed after the lock
  std::lock_guard<std::mutex> lock(all.mu);
  removed = std::exchange(all.tables[number], std::move(table));
  if (all.tables[number] == nullptr) all.tables.erase(number);
}

std::shared_ptr<Table> Table::Find(int number) {
  Published& all = AllPublished();
  std::lock_guard<std::mutex> lock(all.mu);
  const auto found = all.tables.find(number);
  return found == all.tables.end() ? nullptr : found->second;
}

}  // namespace rdma_transport::embeddings
