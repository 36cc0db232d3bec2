// TestDevice: where the op cases of cases.h run. The CPU now (cpu_device.h); a CUDA device
// implements the same interface and runs the same cases.
//
// A case describes values in double; the device decides the element types (act, wt: rules of
// kernels/ops.h). Values are rounded to the type before upload, and the reference is computed from
// the rounded values, so a bound covers the op's own arithmetic only.
#ifndef SOUP_TESTS_KERNELS_DEVICE_H_
#define SOUP_TESTS_KERNELS_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/ops.h"

namespace soup::kernels {

enum class Element : uint8_t { kF32, kBf16 };

class TestDevice {
 public:
  virtual ~TestDevice() = default;

  virtual const char* name() const = 0;
  virtual Element act() const = 0;
  virtual Element wt() const = 0;
  // One rounding step of the arithmetic, relative: 2^-24 on the CPU, 2^-9 with bf16 activations.
  // Bounds of cases are multiples of it.
  virtual double epsilon() const = 0;

  // What a product of two activations rounds them to; 0: it takes them as they are.
  virtual double act_product_epsilon() const { return 0; }

  // Memory that lives as long as the device. `align_bytes` is the only alignment that a caller may
  // count on: a device should return addresses that are not better aligned.
  virtual void* Allocate(size_t bytes, size_t align_bytes) = 0;
  virtual void Upload(void* dst, const void* src, size_t bytes) = 0;
  virtual void Download(void* dst, const void* src, size_t bytes) = 0;

  // One launcher an op; returns when its results can be downloaded.
  virtual void Run(const GatherRowsArgs& args) = 0;
  virtual void Run(const WidenArgs& args) = 0;
  virtual void Run(const Nf4DequantArgs& args) = 0;
  virtual void Run(const RmsNormForwardArgs& args) = 0;
  virtual void Run(const RmsNormBackwardArgs& args) = 0;
  virtual void Run(const HeadNormForwardArgs& args) = 0;
  virtual void Run(const HeadNormBackwardArgs& args) = 0;
  virtual void Run(const AddBiasArgs& args) = 0;
  virtual void Run(const RopeArgs& args) = 0;
  virtual void Run(const AttentionForwardArgs& args) = 0;
  virtual void Run(const AttentionBackwardArgs& args) = 0;
  virtual void Run(const SwigluForwardArgs& args) = 0;
  virtual void Run(const SwigluBackwardArgs& args) = 0;
  virtual void Run(const GemmArgs& args) = 0;
  virtual void Run(const GateUpArgs& args) = 0;
  virtual void Run(const DownBackwardArgs& args) = 0;
  virtual void Run(const AdaptedProductArgs& args) = 0;
  virtual void Run(const TurnedProductArgs& args) = 0;
  virtual void Run(const LoraUpArgs& args) = 0;
  virtual void Run(const LoraUpRopeArgs& args) = 0;
  virtual void Run(const QkvFinishArgs& args) = 0;  // act fp32: args.x is args.y
  virtual void Run(const LoraBackArgs& args) = 0;
  virtual void Run(const LoraGradArgs& args) = 0;
  virtual void Run(const LoraNormedGradArgs& args) = 0;
  virtual void Run(const AxpyArgs& args) = 0;
  virtual void Run(const DropoutArgs& args) = 0;
  virtual void Run(const GatherActRowsArgs& args) = 0;
  virtual void Run(const ScatterActRowsArgs& args) = 0;
  virtual void Run(const LossSliceArgs& args) = 0;
  virtual void Run(const LossTargetRowsArgs& args) = 0;
  virtual void Run(const LossFinishArgs& args) = 0;
  virtual void Run(const RouteArgs& args) = 0;
  virtual void Run(const RouteBackwardArgs& args) = 0;
  virtual void Run(const ListExpertsArgs& args) = 0;
  virtual void Run(const GatherEntriesArgs& args) = 0;
  virtual void Run(const ScatterEntriesArgs& args) = 0;
  virtual void Run(const EntryGradArgs& args) = 0;
  virtual void Run(const AddF32Args& args) = 0;
  virtual void Run(const SumSquaresArgs& args) = 0;
  virtual void Run(const AdamWArgs& args) = 0;
};

inline double RoundTo(Element element, double x) {
  const float f = static_cast<float>(x);
  return element == Element::kF32 ? f : Bf16ToF32(F32ToBf16(f));
}
inline std::vector<double> RoundTo(Element element, std::vector<double> x) {
  for (double& v : x) v = RoundTo(element, v);
  return x;
}

// A float tensor on a device, uploaded from and read back as doubles. The bytes are the device's.
class DeviceTensor {
 public:
  DeviceTensor(TestDevice& device, Element element, const std::vector<double>& values)
      : device_(device), element_(element), size_(values.size()) {
    data_ = device.Allocate(bytes(), element == Element::kF32 ? 4 : 2);
    Set(values);
  }

  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

  void Set(const std::vector<double>& values) {
    std::vector<uint16_t> half(element_ == Element::kBf16 ? size_ : 0);
    std::vector<float> full(element_ == Element::kF32 ? size_ : 0);
    for (size_t i = 0; i < half.size(); ++i) half[i] = F32ToBf16(static_cast<float>(values[i]));
    for (size_t i = 0; i < full.size(); ++i) full[i] = static_cast<float>(values[i]);
    const void* src = element_ == Element::kF32 ? static_cast<const void*>(full.data())
                                                : static_cast<const void*>(half.data());
    device_.Upload(data_, src, bytes());
  }
  std::vector<double> Get() const {
    std::vector<double> values(size_);
    if (element_ == Element::kF32) {
      std::vector<float> raw(size_);
      device_.Download(raw.data(), data_, bytes());
      for (size_t i = 0; i < size_; ++i) values[i] = raw[i];
    } else {
      std::vector<uint16_t> raw(size_);
      device_.Download(raw.data(), data_, bytes());
      for (size_t i = 0; i < size_; ++i) values[i] = Bf16ToF32(raw[i]);
    }
    return values;
  }
  // Rows of `element` that were written over this fp32 tensor [rows, columns], each from where its
  // row starts.
  std::vector<double> GetRows(Element element, int64_t rows, int64_t columns) const {
    if (element == element_) return Get();
    std::vector<uint16_t> raw(2 * size_);
    device_.Download(raw.data(), data_, bytes());
    std::vector<double> values;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) values.push_back(Bf16ToF32(raw[2 * i * columns + j]));
    }
    return values;
  }

 private:
  size_t bytes() const { return size_ * (element_ == Element::kF32 ? 4 : 2); }

  TestDevice& device_;
  Element element_;
  size_t size_;
  void* data_;
};

// Plain values (ids, row lists, packed bytes) on a device.
template <typename T>
class DeviceArray {
 public:
  DeviceArray(TestDevice& device, const std::vector<T>& values) {
    data_ = static_cast<T*>(device.Allocate(values.size() * sizeof(T), sizeof(T)));
    device.Upload(data_, values.data(), values.size() * sizeof(T));
  }
  T* data() const { return data_; }

 private:
  T* data_;
};

}  // namespace soup::kernels

#endif  // SOUP_TESTS_KERNELS_DEVICE_H_
