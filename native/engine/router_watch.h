// What passes of a transformer ask of its routers, for a time.
#pragma once

#include "model/transformer.h"

namespace troupe {

// For the life of this object.
class RouterWatch {
 public:
  RouterWatch(Transformer& transformer, RouterOrders orders)
      : transformer_(transformer), orders_(std::move(orders)) {
    transformer_.watch_routers(orders_);
  }
  ~RouterWatch() { transformer_.watch_routers({}); }
  RouterWatch(const RouterWatch&) = delete;
  RouterWatch& operator=(const RouterWatch&) = delete;

  // From here on.
  void count_in(ExpertLoad* load) {
    orders_.load = load;
    transformer_.watch_routers(orders_);
  }
  void balance_by(const at::Tensor& gradient) {
    orders_.balance = gradient;
    transformer_.watch_routers(orders_);
  }

 private:
  Transformer& transformer_;
  RouterOrders orders_;
};

}  // namespace troupe
