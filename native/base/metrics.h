// What an update reports.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace troupe {

// Metric name (verl's, without the role prefix) -> value, one map per mini-batch in order.
using Metrics = std::map<std::string, double>;
using MetricsList = std::vector<Metrics>;

}  // namespace troupe
