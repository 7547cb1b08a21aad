// Finds where the buffer of a tensor is allocated.
#pragma once

#include <string>

#include "analyzer/plan.h"
#include "analyzer/shapes.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// The result of FindOrigin().
struct Origin {
  Site site;
  std::string mutability;  // for Edge::mutability
};

// Returns whether an output of the node may be the buffer of one of its inputs, or a part of it.
bool MayForward(const tensorflow::Node* node);
// Returns whether the node only updates a variable.
bool UpdatesVariable(const tensorflow::Node* node);

// Follows `output` of `node` back through operations that forward their input's buffer.
Origin FindOrigin(const Shapes& shapes, const tensorflow::Node* node, int output);

}  // namespace rdma_transport::analyzer
