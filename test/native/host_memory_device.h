// Devices that are not there, of the host's memory: code takes the ways that it takes on a GPU, with real
// numbers.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::test {

// What code has asked of such a device.
struct DeviceCounts {
  int64_t launches = 0;  // operations that read or write its memory
  int64_t waits = 0;     // of the host, for all that the device has been given: reads and blocking copies
  int64_t uploads = 0;   // copies from the host that nobody waits for
  int64_t bytes_to_host = 0;
  std::map<std::string, int64_t> waits_by_operation;
};

inline DeviceCounts& device_counts() {
  static DeviceCounts counts;
  return counts;
}

namespace host_memory {

inline void count_wait(const std::string& operation) {
  ++device_counts().waits;
  ++device_counts().waits_by_operation[operation];
}

inline bool boolean(const at::Tensor& x) {
  return x.defined() && (x.scalar_type() == at::kBool || x.scalar_type() == at::kByte);
}

// Operations whose result, or its shape, the host must know.
inline bool host_waits(const std::string& name) {
  static const std::vector<std::string> names = {"aten::_local_scalar_dense",
                                                 "aten::nonzero",
                                                 "aten::equal",
                                                 "aten::bincount",
                                                 "aten::masked_select",
                                                 "aten::repeat_interleave",
                                                 "aten::_unique2",
                                                 "aten::unique_dim",
                                                 "aten::is_nonzero",
                                                 "aten::_foreach_norm",
                                                 "aten::unique_consecutive"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace host_memory

// What LibTorch asks of a device, answered in the host's memory: every operation runs as the CPU's on the
// same memory. It counts what would cost a GPU time.
template <c10::DeviceType kType, c10::DispatchKey kKey>
struct HostMemoryDevice {
  static at::Device device() { return {kType, 0}; }

  class Guard final : public c10::impl::NoOpDeviceGuardImpl<kType> {
   public:
    c10::Device getDevice() const override { return device(); }
    c10::Device exchangeDevice(c10::Device) const override { return device(); }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    c10::Stream getStream(c10::Device) const noexcept override {
      return c10::Stream(c10::Stream::DEFAULT, device());
    }
    c10::Stream getStreamFromGlobalPool(c10::Device where, bool) const override { return getStream(where); }
    c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
    // What has been given to the device is done already.
    void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
    void block(void*, const c10::Stream&) const override {}
    bool queryEvent(void*) const override { return true; }
    bool queryStream(const c10::Stream&) const override { return true; }
    void synchronizeEvent(void*) const override {}
    void synchronizeStream(const c10::Stream&) const override {}
    void synchronizeDevice(const c10::DeviceIndex) const override {}
    void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
    void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
  };
  class Allocator final : public c10::DeviceAllocator {
   public:
    c10::DataPtr allocate(size_t bytes) override {
      auto* memory = new c10::DataPtr(c10::GetAllocator(c10::kCPU)->allocate(bytes));
      const auto free = [](void* context) { delete static_cast<c10::DataPtr*>(context); };
      return {memory->get(), memory, free, device()};
    }
    void copy_data(void* dest, const void* src, std::size_t count) const override {
      default_copy_data(dest, src, count);
    }
    bool initialized() override { return true; }
    void emptyCache(c10::MempoolId_t) override {}
    void recordStream(const c10::DataPtr&, c10::Stream) override {}
    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
    void resetAccumulatedStats(c10::DeviceIndex) override {}
    void resetPeakStats(c10::DeviceIndex) override {}
  };

  static c10::Allocator* allocator() {
    static Allocator one;
    return &one;
  }

  static bool here(const at::Tensor& x) { return x.defined() && x.device().type() == kType; }

  static at::Tensor tensor_of(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
    at::Tensor made =
        at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    return made;
  }

  static c10::Storage storage_on(void* data, size_t bytes, c10::Device device) {
    return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(data, device), nullptr, false};
  }

  // The arguments of one operation as the CPU sees them, and its results as the device does.
  class Mirrors {
   public:
    at::Tensor of(const at::Tensor& x) {
      if (!here(x)) return x;
      if (x.numel() == 0) {  // perhaps to be resized
        pairs_.emplace_back(at::empty(x.sizes(), at::TensorOptions(x.scalar_type())), x);
        return pairs_.back().first;
      }
      const c10::Storage& storage = x.storage();
      const auto known = host_.find(storage.unsafeGetStorageImpl());
      const c10::Storage host = known != host_.end() ? known->second
                                                     : storage_on(const_cast<void*>(storage.data()),
                                                                  storage.nbytes(), c10::Device(c10::kCPU));
      host_.emplace(storage.unsafeGetStorageImpl(), host);
      pairs_.emplace_back(tensor_of(host, x, c10::DispatchKey::CPU), x);
      return pairs_.back().first;
    }

    at::Tensor back(const at::Tensor& result) const {
      if (!result.defined() || !result.is_cpu()) return result;
      for (const auto& [mirror, original] : pairs_) {
        if (!mirror.is_same(result)) continue;
        if (mirror.sizes() == original.sizes()) return original;
        TORCH_CHECK(original.numel() == 0, "the fake device does not resize ", original.sizes(), " to ",
                    mirror.sizes());
        c10::TensorImpl* resized = original.unsafeGetTensorImpl();
        resized->set_storage_keep_dtype(storage_of(result));
        resized->set_sizes_and_strides(result.sizes(), result.strides());
        return original;
      }
      for (const auto& [mirror, original] : pairs_) {
        if (mirror.storage().is_alias_of(result.storage()))
          return tensor_of(original.storage(), result, kKey);
      }
      return tensor_of(storage_of(result), result, kKey);
    }

    bool any() const { return !pairs_.empty(); }

   private:
    // What an operation has made, as the device's.
    static c10::Storage storage_of(const at::Tensor& made) {
      auto* keep = new c10::Storage(made.storage());
      const auto free = [](void* context) { delete static_cast<c10::Storage*>(context); };
      c10::DataPtr data(const_cast<void*>(keep->data()), keep, free, device());
      return {c10::Storage::use_byte_size_t(), keep->nbytes(), std::move(data), allocator(), false};
    }

    std::map<c10::StorageImpl*, c10::Storage> host_;
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
  };

  static void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    Mirrors mirrors;
    bool masks = false;
    const size_t first = stack->size() - schema.arguments().size();
    for (size_t i = first; i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (value.isTensor()) {
        value = mirrors.of(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& x : value.toTensorVector()) list.push_back(mirrors.of(x));
        value = list;
      } else if (value.isOptionalTensorList()) {
        c10::List<std::optional<at::Tensor>> list;
        for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector()) {
          masks = masks || (x && host_memory::boolean(*x));
          list.push_back(x ? std::optional<at::Tensor>(mirrors.of(*x)) : std::nullopt);
        }
        value = list;
      } else if (value.isDevice() && value.toDevice() == device()) {
        value = c10::Device(c10::kCPU);
      }
    }
    const std::string name = schema.name();
    bool view = false;
    for (const c10::Argument& result : schema.returns())
      view = view || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
    if (masks || host_memory::host_waits(name)) {
      host_memory::count_wait(name);
    } else if (!view) {
      ++device_counts().launches;
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
      c10::IValue& value = (*stack)[i];
      if (value.isTensor()) {
        value = mirrors.back(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& x : value.toTensorVector()) list.push_back(mirrors.back(x));
        value = list;
      }
    }
  }

  static at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                          std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                          std::optional<at::MemoryFormat> format) {
    return at::detail::empty_generic(size, allocator(), c10::DispatchKeySet(kKey),
                                     c10::dtype_or_default(dtype), format);
  }

  static at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                                  std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                                  std::optional<at::Device>, std::optional<bool>) {
    return at::detail::empty_strided_generic(size, stride, allocator(), c10::DispatchKeySet(kKey),
                                             c10::dtype_or_default(dtype));
  }

  // From the host without waiting: from pinned memory, as upload() does. To the host always with.
  static at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
    if (!here(self)) {
      host_memory::count_wait("copy to the host");
      device_counts().bytes_to_host += static_cast<int64_t>(source.nbytes());
    } else if (here(source)) {
      ++device_counts().launches;
    } else if (non_blocking) {
      ++device_counts().uploads;
    } else {
      host_memory::count_wait("copy from the host");
    }
    Mirrors mirrors;
    mirrors.of(self).copy_(mirrors.of(source));
    return self;
  }

  // The device's operations, for TORCH_LIBRARY_IMPL(_, key, library) and TORCH_LIBRARY_IMPL(aten, key,
  // library).
  static void all_operations(torch::Library& library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
  }
  static void own_operations(torch::Library& library) {
    library.impl("empty.memory_format", &empty);
    library.impl("empty_strided", &empty_strided);
    library.impl("copy_", &copy);
  }
};

// What body() asks of the device.
template <typename Body>
DeviceCounts counted_on_device(const Body& body) {
  device_counts() = {};
  body();
  return std::exchange(device_counts(), {});
}

}  // namespace troupe::test
