// Collectives over the ranks of a group, independent of what moves the bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective_log.h"

namespace troupe {

enum class ReduceOp { kSum, kMax };

class Communicator;

// A collective that is under way. Until wait() has returned its output must not be read and neither of its
// tensors written or freed by hand.
class Pending {
 public:
  // To the end of the collective; throws as Communicator does. A second call does nothing.
  void wait();

 private:
  friend class Communicator;
  Pending(Communicator& comm, int64_t sequence, std::function<void()> wait)
      : comm_(comm), sequence_(sequence), wait_(std::move(wait)) {}

  Communicator& comm_;
  int64_t sequence_;
  std::function<void()> wait_;
};

// Collectives over the ranks of a group. Every rank calls the same ones in the same order, from one thread,
// with contiguous tensors of the same shapes; they run one after another, in that order. Sums run in the
// order of the ranks, so they are the same in every run and on every rank. A message from one rank to
// another is a matter of these two.
//
// kInternal for tensors that do not fit. kComm when a peer is lost or the time-out passes: the message names
// the collective, its label, the ranks that did not take part and the last collective that each rank
// finished. kInternal or kOutOfMemory when this rank's own device or memory failed in it, which the message
// says. kAborted after abort(). Either way the communicator is of no more use: later calls throw the same
// error, and tensors that were passed in must not be freed by hand, because the transport may still hold
// them.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return size_; }

  // output [size * n] <- input [n] of every rank, in their order. Any dtype.
  void all_gather(const at::Tensor& output, const at::Tensor& input, const CollectiveLabel& label);
  // The same, begun only. Other collectives may follow before its wait(); they run after it.
  Pending all_gather_async(const at::Tensor& output, const at::Tensor& input, const CollectiveLabel& label);
  // Part r of input [size * n] goes to rank r; part r of output came from rank r. Any dtype.
  void all_to_all(const at::Tensor& output, const at::Tensor& input, const CollectiveLabel& label);
  Pending all_to_all_async(const at::Tensor& output, const at::Tensor& input, const CollectiveLabel& label);
  // output [n] <- the sum over ranks of part `rank` of input [size * n]. Of narrow types (bfloat16) the sum
  // is float32 and rounded once, or not at all into an output of float32.
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const CollectiveLabel& label);
  // The same, begun only, with memory of the size of the input until its wait(), which adds up.
  Pending reduce_scatter_async(const at::Tensor& output, const at::Tensor& input,
                               const CollectiveLabel& label);
  // In place, any shape.
  void all_reduce(const at::Tensor& tensor, ReduceOp op, const CollectiveLabel& label);
  // In place: the tensor of rank `root` everywhere.
  void broadcast(const at::Tensor& tensor, int64_t root, const CollectiveLabel& label);
  void barrier(const CollectiveLabel& label);

  // Messages: what one rank sends another one takes with recv, in the order in which they were sent, into a
  // tensor with as many elements of the same dtype. send returns when the tensor may be written again, which
  // is not before the other rank has come to take it: of ranks that send in a circle one must take first. A
  // message of another size or dtype is dropped whole and recv throws kInternal, with its tensor as it was
  // and the communicator as good as before. kInvalidArgument for a rank that is not another one of the group.
  void send(const at::Tensor& tensor, int64_t dst, const CollectiveLabel& label);
  void recv(const at::Tensor& tensor, int64_t src, const CollectiveLabel& label);

  // A communicator of some of the ranks (this one among them), in the order given. All of them call this at
  // the same time with the same `name`, which no other split of them has had.
  virtual std::unique_ptr<Communicator> split(const std::string& name, const std::vector<int64_t>& ranks) = 0;

  // The only call allowed from another thread: ends the running collective and all later ones.
  virtual void abort(const std::string& reason) = 0;

  const CollectiveLog& log() const { return log_; }

  // [Note: message headers] Gloo ends the process when a message is longer than the receiver's memory, and
  // leaves the rest as it was when it is shorter; NCCL waits for ever. So each message comes after another
  // one of this many bytes that says what it is: dtype and number of elements, int64.
  static constexpr int64_t kMessageHeader = 16;

 protected:
  Communicator(int64_t rank, int64_t size)
      : rank_(rank),
        size_(size),
        messages_to_(static_cast<size_t>(size)),
        messages_from_(static_cast<size_t>(size)) {}

  // Tensors of bytes. begin_ returns what waits for the end and throws what went wrong; empty when it has
  // ended.
  virtual std::function<void()> begin_all_gather(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual std::function<void()> begin_all_to_all(const at::Tensor& output, const at::Tensor& input) = 0;
  virtual void move_broadcast(const at::Tensor& tensor, int64_t root) = 0;
  // `header`: what this rank sends or expects; see [Note: message headers].
  virtual void move_send(const at::Tensor& header, const at::Tensor& tensor, int64_t dst) = 0;
  virtual void move_recv(const at::Tensor& header, const at::Tensor& tensor, int64_t src) = 0;
  // The number by which the outside knows a rank.
  virtual int64_t known_as(int64_t rank) const { return rank; }

 private:
  friend class Pending;
  using Move = void (Communicator::*)(const at::Tensor& header, const at::Tensor& tensor, int64_t peer);
  void message(CollectiveLog::Entry entry, const at::Tensor& tensor, int64_t peer,
               std::vector<int64_t>& counts, Move move);
  // An all-gather that the log lists as `name`, the operation that it implements.
  Pending gather_as(const char* name, int64_t bytes, const at::Tensor& output, const at::Tensor& input,
                    const CollectiveLabel& label);

  int64_t rank_;
  int64_t size_;
  CollectiveLog log_;
  std::vector<int64_t> messages_to_, messages_from_;  // [size], so far
};

// Arrays of float32 or int32 whose elements are each written by one rank of `comm` and 0 on the others -> the
// whole on every rank, bit by bit.
at::Tensor combine_parts(Communicator& comm, const at::Tensor& own, const CollectiveLabel& label);

struct CommOptions {
  std::string backend = "gloo";  // gloo | nccl
  int64_t rank = 0;
  int64_t size = 1;
  std::string host = "127.0.0.1";  // of this rank, where the others reach it (Gloo)
  int64_t port = 0;                // of the rendezvous, on 127.0.0.1
  std::string token;  // shared by the ranks of a group: strangers at the same rendezvous do not meet them
  std::chrono::milliseconds timeout{600'000};  // of one collective
};

// Size 1: nothing moves.
std::unique_ptr<Communicator> make_local_communicator();
// Waits until all ranks have joined. kComm when they do not within the time-out.
std::unique_ptr<Communicator> make_gloo_communicator(const CommOptions& options);
std::unique_ptr<Communicator> make_nccl_communicator(const CommOptions& options);
// By size and backend. kInvalidArgument for ranks or backends that make no sense.
std::unique_ptr<Communicator> make_communicator(const CommOptions& options);

}  // namespace troupe
