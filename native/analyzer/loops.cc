#include "analyzer/loops.h"

namespace rdma_transport::analyzer {

namespace tf = tensorflow;

std::vector<bool> InLoops(const tf::Graph& graph) {
  std::vector<bool> inside(static_cast<size_t>(graph.num_node_ids()), false);
  std::vector<const tf::Node*> stack;
  for (const tf::Node* node : graph.op_nodes()) {
    if (!node->IsEnter()) continue;
    inside[node->id()] = true;
    stack.push_back(node);
  }
  while (!stack.empty()) {
    const tf::Node* node = stack.back();
    stack.pop_back();
    if (node->IsExit()) continue;
    for (const tf::Node* next : node->out_nodes()) {
      if (!next->IsOp() || inside[next->id()]) continue;
      inside[next->id()] = true;
      stack.push_back(next);
    }
  }
  return inside;
}

}  // namespace rdma_transport::analyzer
