// How the decoder asks for parameters that are not always there.
#pragma once

#include <cstddef>
#include <vector>

namespace troupe {

// Brings the parameters and gradients of one group into memory around their use, where a process does not
// hold all of them all the time. `phase` says what for ("forward", "backward"). The decoder calls this for
// its groups in the same order on every rank; a decoder that has all of its parameters has no access
// object and calls nothing.
//
// Uses are counted: several micro-batches may be under way in a group at the same time. What the first one
// brings stays until the last one has gone, and a gradient that one has begun is added to by the others.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;
  // Parameter::compute of the group can be read until as many release().
  virtual void acquire(size_t group, const char* phase) = 0;
  virtual void release(size_t group) = 0;
  // The group will be acquired next after what is acquired now: getting it may begin.
  virtual void prefetch(size_t group, const char* phase) = 0;
  // Where the group is trained, Parameter::grad can be added to until as many release_gradient(). The first
  // one finds zeros (or what the mini-batch has added up so far), and the last one hands it on, which may
  // take until the gradients after the next ones are released.
  virtual void acquire_gradient(size_t group) = 0;
  virtual void release_gradient(size_t group) = 0;
  // The end of a backward pass: all that have been released are handed on.
  virtual void settle_gradients() = 0;
};

// One use of some groups' parameters, gradients, or both, from its making to end(). A lease that is dropped
// without end() is one of a verb that has failed: the next verb takes back all that is left.
class Lease {
 public:
  enum class Of { kParameters, kGradients, kBoth };

  Lease() = default;
  // access may be null: everything is there.
  Lease(ParameterAccess* access, const std::vector<size_t>& groups, const char* phase,
        Of of = Of::kParameters)
      : access_(access), of_(of) {
    if (access_ == nullptr) return;
    groups_ = groups;
    for (const size_t group : groups_) {
      if (of_ != Of::kGradients) access_->acquire(group, phase);
      if (of_ != Of::kParameters) access_->acquire_gradient(group);
    }
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Lease(Lease&& other) noexcept { *this = std::move(other); }
  Lease& operator=(Lease&& other) noexcept {
    access_ = other.access_;
    of_ = other.of_;
    groups_ = std::move(other.groups_);
    other.groups_.clear();
    return *this;
  }

  // A second call does nothing.
  void end() {
    const std::vector<size_t> groups = std::move(groups_);
    groups_.clear();
    for (const size_t group : groups) {
      if (of_ != Of::kParameters) access_->release_gradient(group);
      if (of_ != Of::kGradients) access_->release(group);
    }
  }

 private:
  ParameterAccess* access_ = nullptr;
  Of of_ = Of::kParameters;
  std::vector<size_t> groups_;
};

}  // namespace troupe
