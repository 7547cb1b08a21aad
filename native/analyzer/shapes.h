// The shapes of a whole graph's tensors, and how they travel with its nodes into the partitions.
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

using Shape = std::optional<std::vector<int64_t>>;  // -1: not known; none: not even the rank

// Inference over a graph. The graph must outlive it.
class Shapes {
 public:
  explicit Shapes(const tensorflow::Graph& graph);
  ~Shapes();

  // What inference gives, or else what MarkShapes() left on the node.
  Shape Of(const tensorflow::Node* node, int output) const;
  // Of the variable behind a resource handle.
  Shape OfHandle(const tensorflow::Node* node, int output) const;

 private:
  void Infer(const tensorflow::Graph& graph, const std::set<const tensorflow::Node*>& changing);

  std::unique_ptr<tensorflow::ShapeRefiner> refiner_;
};

// Writes the shapes of the outputs that leave their task onto their nodes: a task that is given its
// own partition alone could not infer them. To be called on the placed graph.
void MarkShapes(tensorflow::Graph* graph);
// The same with what was inferred already.
void MarkShapes(const Shapes& shapes, tensorflow::Graph* graph);

}  // namespace rdma_transport::analyzer
