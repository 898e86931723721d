// How the decoder asks for parameters that are not always there.
#pragma once

#include <cstddef>

namespace troupe {

// Brings the parameters and gradients of one group into memory around their use, where a process does not
// hold all of them all the time. `phase` says what for ("forward", "backward"). The decoder calls this for
// its groups in the same order on every rank; a decoder that has all of its parameters has no access
// object and calls nothing.
class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;
  // Parameter::compute of the group can be read until release(). A second call does nothing.
  virtual void acquire(size_t group, const char* phase) = 0;
  virtual void release(size_t group) = 0;
  // The group will be acquired next after what is acquired now: getting it may begin.
  virtual void prefetch(size_t group, const char* phase) = 0;
  // Where the group is trained, Parameter::grad is zero and can be added to until release_gradient(), which
  // hands it on.
  virtual void acquire_gradient(size_t group) = 0;
  virtual void release_gradient(size_t group) = 0;
};

}  // namespace troupe
