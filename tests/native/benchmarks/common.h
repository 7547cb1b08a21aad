// What the benchmarks share.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"

namespace rdma_transport::benchmarks {

// Ends the program if `status` is an error.
inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

// Returns the settings of the environment.
inline Settings LoadedSettings() {
  Settings settings;
  std::vector<std::string> warnings;
  Require(LoadSettings(environ, &settings, &warnings));
  return settings;
}

// Returns the value below which `share` of the values lie; 0 if there are none.
inline double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace rdma_transport::benchmarks
