// In place of nccl.cc in a build without CUDA: says so.
#include "base/error.h"
#include "comm/communicator.h"

// Takes the place of the NCCL communicator in builds without it.
namespace troupe {

std::unique_ptr<Communicator> make_nccl_communicator(const CommOptions&) {
  fail(ErrorCode::kComm,
       "[comm] this build has no NCCL communicator: several ranks need device cpu, which uses Gloo");
}

}  // namespace troupe
