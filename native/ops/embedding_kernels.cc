// The kernels of tables of embeddings. Only lookups of rows on other hosts wait, on the thread of
// the table.
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "embeddings/table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/util/work_sharder.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;
using embeddings::Ids;
using embeddings::IdType;
using embeddings::Table;

constexpr int64_t kCyclesPerRow = 200;

absl::Status Converted(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

// Of the types that the operations allow.
Ids IdsOf(const tf::Tensor& tensor) {
  const tf::DataType type = tensor.dtype();
  const IdType of = type == tf::DT_INT32    ? IdType::kInt32
                    : type == tf::DT_UINT64 ? IdType::kUint64
                                            : IdType::kInt64;
  return {of, tensor.data(), static_cast<size_t>(tensor.NumElements())};
}

template <typename Base>
class TableKernel : public Base {
 public:
  explicit TableKernel(tf::OpKernelConstruction* construction) : Base(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("table", &number_));
  }

 protected:
  absl::Status FindTable(tf::DataType type, std::shared_ptr<Table>* table) const {
    *table = Table::Find(number_);
    if (*table == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("the table of ", this->name(), " is closed, or of another process"));
    }
    const bool fits = (type == tf::DT_DOUBLE) == (embeddings::SizeOf((*table)->type()) == 8);
    if (fits) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("table '", (*table)->name(), "' has no weights of ", DataTypeString(type)));
  }

  // Checks that there are gradients for all ids.
  static absl::Status CheckGradients(const Table& table, const tf::Tensor& ids,
                                     const tf::Tensor& gradients) {
    const auto wanted = static_cast<int64_t>(ids.NumElements() * table.dim());
    if (gradients.NumElements() == wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", table.name(), "': gradients of shape ", gradients.shape().DebugString(),
        " for ids of shape ", ids.shape().DebugString(), " and rows of ", table.dim(), " weights"));
  }

 private:
  int number_ = 0;
};

class EmbeddingLookupKernel final : public TableKernel<tf::AsyncOpKernel> {
 public:
  using TableKernel::TableKernel;

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK_ASYNC(context, FindTable(context->expected_output_dtype(0), &table), done);
    tf::TensorShape shape = context->input(0).shape();
    OP_REQUIRES_OK_ASYNC(context, shape.AddDimWithStatus(static_cast<int64_t>(table->dim())), done);
    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, shape, &rows), done);
    if (table->all_mapped()) {
      OP_REQUIRES_OK_ASYNC(context, LookUpInParts(*table, context, rows), done);
      return done();
    }
    table->RunLater([context, rows, table, done = std::move(done)] {
      const Status status = table->Lookup(
          IdsOf(context->input(0)), static_cast<char*>(rows->data()), collectives::Patience());
      if (!status.ok()) context->SetStatus(Converted(status));
      done();
    });
  }

 private:
  // Rows are read from memory, so several threads are faster than one.
  static absl::Status LookUpInParts(const Table& table, tf::OpKernelContext* context,
                                    tf::Tensor* rows) {
    const Ids all = IdsOf(context->input(0));
    const auto* const ids = static_cast<const char*>(all.data);
    const size_t id_bytes = all.type == IdType::kInt32 ? 4 : 8;
    auto* const out = static_cast<char*>(rows->data());
    std::mutex mu;
    Status first;
    const auto look_up = [&](int64_t begin, int64_t end) {
      const Ids part = {all.type, ids + begin * id_bytes, static_cast<size_t>(end - begin)};
      const Status status =
          table.Lookup(part, out + begin * table.row_bytes(), collectives::Patience());
      std::lock_guard<std::mutex> lock(mu);
      if (first.ok()) first = status;
    };
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    const auto cycles = static_cast<int64_t>(kCyclesPerRow + table.row_bytes() / 4);
    tf::Shard(threads.num_threads, threads.workers, static_cast<int64_t>(all.count), cycles,
              look_up);
    return Converted(first);
  }
};

class EmbeddingSumKernel final : public TableKernel<tf::OpKernel> {
 public:
  using TableKernel::TableKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& ids = context->input(0);
    const tf::Tensor& gradients = context->input(1);
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(context, FindTable(gradients.dtype(), &table));
    OP_REQUIRES_OK(context, CheckGradients(*table, ids, gradients));
    embeddings::RowGradients made;
    OP_REQUIRES_OK(context, Converted(table->Sum(
                                IdsOf(ids), static_cast<const char*>(gradients.data()), &made)));
    const auto unique = static_cast<int64_t>(made.grouped.rows.size());
    const auto owners = static_cast<int64_t>(made.grouped.counts.size());
    tf::Tensor *rows = nullptr, *sums = nullptr, *splits = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {unique}, &rows));
    OP_REQUIRES_OK(
        context, context->allocate_output(1, {unique, static_cast<int64_t>(table->dim())}, &sums));
    OP_REQUIRES_OK(context, context->allocate_output(2, {owners}, &splits));
    if (unique > 0) {
      std::memcpy(rows->data(), made.grouped.rows.data(), rows->TotalBytes());
      std::memcpy(sums->data(), made.sums.data(), sums->TotalBytes());
    }
    for (int64_t owner = 0; owner < owners; ++owner) {
      splits->flat<int32_t>()(owner) = static_cast<int32_t>(made.grouped.counts[owner]);
    }
  }
};

class EmbeddingApplyKernel final : public TableKernel<tf::OpKernel> {
 public:
  using TableKernel::TableKernel;

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& rows = context->input(0);
    const tf::Tensor& gradients = context->input(1);
    std::shared_ptr<Table> table;
    OP_REQUIRES_OK(context, FindTable(gradients.dtype(), &table));
    OP_REQUIRES_OK(context, CheckGradients(*table, rows, gradients));
    OP_REQUIRES_OK(
        context, Converted(table->Apply(IdsOf(rows), static_cast<const char*>(gradients.data()))));
  }
};

#define RDMA_TRANSPORT_KERNEL(name) \
  REGISTER_KERNEL_BUILDER(Name("RdmaTransport" #name).Device(tf::DEVICE_CPU), name##Kernel)

RDMA_TRANSPORT_KERNEL(EmbeddingLookup);
RDMA_TRANSPORT_KERNEL(EmbeddingSum);
RDMA_TRANSPORT_KERNEL(EmbeddingApply);

}  // namespace
}  // namespace rdma_transport
