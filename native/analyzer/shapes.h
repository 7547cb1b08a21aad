// The shapes of a whole graph's tensors, and how its nodes carry them into the partitions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace tensorflow {
class ShapeRefiner;
}

namespace rdma_transport::analyzer {

using Shape = std::optional<std::vector<int64_t>>;  // -1 if a dimension is unknown; empty if the
                                                    // rank is unknown

// Returns the size of a tensor, if the shape is known. Requires a type of plain bytes.
std::optional<uint64_t> BytesOf(const Shape& shape, tensorflow::DataType dtype);

// Infers the shapes of a graph, which must outlive this.
class Shapes {
 public:
  explicit Shapes(const tensorflow::Graph& graph);
  ~Shapes();

  // The inferred shape, or else what MarkShapes() stored on the node.
  Shape Of(const tensorflow::Node* node, int output) const;

 private:
  void Infer(const tensorflow::Graph& graph, const std::set<const tensorflow::Node*>& changing);

  std::unique_ptr<tensorflow::ShapeRefiner> refiner_;
};

// Returns whether the edge is one between tasks. Requires a placed graph.
bool Crosses(const tensorflow::Edge& edge);
// Returns whether another task needs one of the node's outputs. Requires a placed graph.
bool Leaves(const tensorflow::Node* node);

// Stores on nodes the shapes of outputs that leave their task: a task that sees only its own
// partition cannot infer them. Must be called on the placed graph.
void MarkShapes(const Shapes& shapes, tensorflow::Graph* graph);

}  // namespace rdma_transport::analyzer
