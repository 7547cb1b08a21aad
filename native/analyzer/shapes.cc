#include "analyzer/shapes.h"

#include <algorithm>

#include "tensorflow/core/common_runtime/shape_refiner.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

constexpr char kMark[] = "_rdma_transport_shapes";

Shape FromHandle(tf::shape_inference::InferenceContext* context,
                 const tf::shape_inference::ShapeHandle& handle) {
  if (!context->RankKnown(handle)) return std::nullopt;
  std::vector<int64_t> dims;
  for (int i = 0; i < context->Rank(handle); ++i) {
    const auto dim = context->Dim(handle, i);
    dims.push_back(context->ValueKnown(dim) ? context->Value(dim) : -1);
  }
  return dims;
}

bool Known(const Shape& shape) {
  return shape && std::all_of(shape->begin(), shape->end(), [](int64_t dim) { return dim >= 0; });
}

// Returns the edge into a loop from outside, or null if `node` is not a loop's Merge.
const tf::Edge* LoopEntry(const tf::Node* node, const tf::Edge** body) {
  if (!node->IsMerge()) return nullptr;
  const tf::Edge* entry = nullptr;
  *body = nullptr;
  for (const tf::Edge* edge : node->in_edges()) {
    if (edge->IsControlEdge()) continue;
    (edge->src()->IsNextIteration() ? *body : entry) = edge;
  }
  if (*body == nullptr || entry == nullptr) return nullptr;
  // An Enter has no shape, because it does not know whether the loop keeps it.
  const tf::Edge* outside = nullptr;
  const bool enter = entry->src()->IsEnter() && entry->src()->input_edge(0, &outside).ok();
  return enter ? outside : entry;
}

// Rounds of inference that find loops which change the shapes of their values.
constexpr int kMaxRounds = 4;

}  // namespace

Shapes::Shapes(const tf::Graph& graph) {
  // A loop is assumed to keep the shapes that enter it until its body shows otherwise.
  std::vector<const tf::Node*> merges;
  const tf::Edge* body = nullptr;
  for (const tf::Node* node : graph.op_nodes()) {
    if (LoopEntry(node, &body) != nullptr) merges.push_back(node);
  }
  std::set<const tf::Node*> changing;
  for (int round = 0; round < kMaxRounds; ++round) {
    Infer(graph, changing);
    bool right = true;
    for (const tf::Node* merge : merges) {
      if (changing.count(merge) != 0) continue;
      LoopEntry(merge, &body);
      const tf::Edge* next = nullptr;  // a NextIteration has no shape either
      if (body->src()->input_edge(0, &next).ok() &&
          Of(next->src(), next->src_output()) == Of(merge, 0)) {
        continue;
      }
      changing.insert(merge);
      right = false;
    }
    if (right) return;
  }
  Infer(graph, std::set<const tf::Node*>(merges.begin(), merges.end()));
}

void Shapes::Infer(const tf::Graph& graph, const std::set<const tf::Node*>& changing) {
  refiner_ = std::make_unique<tf::ShapeRefiner>(graph.versions(), graph.op_registry());
  refiner_->set_require_shape_inference_fns(false);
  refiner_->set_function_library_for_shape_inference(&graph.flib_def());
  std::vector<tf::Node*> order;
  // Ignores the edges that close loops, so that a loop's Merge precedes its body.
  tf::GetReversePostOrder(graph, &order, {},
                          [](const tf::Edge& edge) { return !edge.src()->IsNextIteration(); });
  for (const tf::Node* node : order) {
    if (!node->IsOp()) continue;
    // If inference rejects a node, the shapes that depend on it stay unknown until the step runs.
    refiner_->AddNode(node).IgnoreError();
    const tf::Edge* body = nullptr;
    const tf::Edge* entry = changing.count(node) != 0 ? nullptr : LoopEntry(node, &body);
    if (entry == nullptr) continue;
    auto* from = refiner_->GetContext(entry->src());
    auto* to = refiner_->GetContext(node);
    if (from == nullptr || to == nullptr) continue;
    const Shape shape = FromHandle(from, from->output(entry->src_output()));
    if (!shape) continue;
    std::vector<tf::shape_inference::DimensionHandle> dims;
    for (const int64_t dim : *shape) dims.push_back(dim < 0 ? to->UnknownDim() : to->MakeDim(dim));
    to->set_output(0, to->MakeShape(dims));
  }
}

Shapes::~Shapes() = default;

Shape Shapes::Of(const tf::Node* node, int output) const {
  Shape shape;
  auto* context = refiner_->GetContext(node);
  if (context != nullptr && output < context->num_outputs()) {
    shape = FromHandle(context, context->output(output));
  }
  if (Known(shape)) return shape;
  std::vector<tf::PartialTensorShape> marked;
  if (!tf::GetNodeAttr(node->attrs(), kMark, &marked).ok() ||
      output >= static_cast<int>(marked.size()) || !marked[output].IsFullyDefined()) {
    return shape;
  }
  const auto dims = marked[output].dim_sizes();
  return std::vector<int64_t>(dims.begin(), dims.end());
}

bool Crosses(const tf::Edge& edge) {
  const std::string& from = edge.src()->assigned_device_name();
  const std::string& to = edge.dst()->assigned_device_name();
  return from != to && !tf::DeviceNameUtils::IsSameAddressSpace(from, to);
}

bool Leaves(const tf::Node* node) {
  const auto& edges = node->out_edges();
  return std::any_of(edges.begin(), edges.end(), [](const tf::Edge* edge) {
    return !edge->IsControlEdge() && edge->dst()->IsOp() && Crosses(*edge);
  });
}

std::optional<uint64_t> BytesOf(const Shape& shape, tf::DataType dtype) {
  if (!shape) return std::nullopt;
  uint64_t bytes = static_cast<uint64_t>(tf::DataTypeSize(dtype));
  for (const int64_t dim : *shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

void MarkShapes(const Shapes& shapes, tf::Graph* graph) {
  for (tf::Node* node : graph->op_nodes()) {
    if (!Leaves(node)) continue;
    std::vector<tf::PartialTensorShape> marks;
    bool any = false;
    for (int i = 0; i < node->num_outputs(); ++i) {
      const Shape shape = shapes.Of(node, i);
      any |= Known(shape);
      tf::PartialTensorShape mark;
      if (Known(shape)) {
        tf::PartialTensorShape::MakePartialShape(shape->data(), static_cast<int>(shape->size()),
                                                 &mark)
            .IgnoreError();
      }
      marks.push_back(mark);
    }
    if (any) node->AddAttr(kMark, marks);
  }
}

}  // namespace rdma_transport::analyzer
