// The checker is checked: for every op, kernels that are wrong in a way that real ones have been
// wrong must fail at least one of the op's cases.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cpu_device.h"
#include "tests/kernels/wrapped_device.h"

namespace soup::kernels {
namespace {

struct WrongKernel {
  std::string name;
  std::string op;  // prefix of the cases that must notice
  std::function<void(WrappedDevice&)> install;
};

// The launcher with changed args.
template <typename Args>
std::function<void(WrappedDevice&)> WithArgs(std::function<void(Args&)> change) {
  return [change](WrappedDevice& device) {
    device.Replace<Args>([change](TestDevice& inner, Args args) {
      change(args);
      inner.Run(args);
    });
  };
}

// The launcher, then a change to what it wrote.
template <typename Args>
std::function<void(WrappedDevice&)> ThenChange(std::function<void(const Args&)> change) {
  return [change](WrappedDevice& device) {
    device.Replace<Args>([change](TestDevice& inner, Args args) {
      inner.Run(args);
      change(args);
    });
  };
}

float* Floats(void* data) { return static_cast<float*>(data); }

// All sequences of a pack taken for one.
template <typename Args>
void ForgetBoundaries(Args& args) {
  static int32_t whole[2];
  if (args.S == 0) return;
  whole[0] = 0;
  whole[1] = args.cu_seqlens[args.S];
  args.cu_seqlens = whole;
  args.S = 1;
}

std::vector<WrongKernel> NormAndRope() {
  return {
      {"eps_outside_root", "rms_norm_forward",
       WithArgs<RmsNormForwardArgs>([](auto& a) { a.eps = 0.0033f; })},
      {"bias_on_the_tail", "qkv_finish",
       WithArgs<QkvFinishArgs>([](auto& a) { a.biased_rows = a.T; })},
      {"k_by_the_norm_of_q", "qkv_finish",
       WithArgs<QkvFinishArgs>([](auto& a) { a.k_norm = a.q_norm; })},
      {"adapters_left_out", "qkv_finish",
       WithArgs<QkvFinishArgs>([](auto& a) { a.linears.count = 0; })},
      {"last_row_left_out", "rms_norm_forward",
       WithArgs<RmsNormForwardArgs>([](auto& a) { a.T -= 1; })},
      {"accumulate_ignored", "rms_norm_backward",
       WithArgs<RmsNormBackwardArgs>([](auto& a) { a.accumulate = false; })},
      {"always_accumulates", "rms_norm_backward",
       WithArgs<RmsNormBackwardArgs>([](auto& a) { a.accumulate = true; })},
      {"rotates_back", "rope_", WithArgs<RopeArgs>([](auto& a) { a.inverse = !a.inverse; })},
      {"one_head_too_many", "rope_", WithArgs<RopeArgs>([](auto& a) {
         if ((a.heads + 1) * a.D <= a.row_stride) a.heads += 1;
       })},
      {"one_head_too_few", "rope_", WithArgs<RopeArgs>([](auto& a) { a.heads -= 1; })},
  };
}

std::vector<WrongKernel> Attention() {
  return {
      {"leaks_across_sequences", "attention_forward",
       WithArgs<AttentionForwardArgs>([](auto& a) { ForgetBoundaries(a); })},
      {"scale_off_by_1e_4", "attention_forward",
       WithArgs<AttentionForwardArgs>([](auto& a) { a.scale *= 1.0001f; })},
      {"tail_not_zeroed", "attention_forward",
       WithArgs<AttentionForwardArgs>([](auto& a) { a.T = a.S == 0 ? 0 : a.cu_seqlens[a.S]; })},
      {"leaks_across_sequences", "attention_backward",
       WithArgs<AttentionBackwardArgs>([](auto& a) { ForgetBoundaries(a); })},
      {"dk_unscaled_by_1e_4", "attention_backward",
       ThenChange<AttentionBackwardArgs>([](const auto& a) { Floats(a.dk)[0] *= 1.0001f; })},
      {"tail_not_zeroed", "attention_backward",
       WithArgs<AttentionBackwardArgs>([](auto& a) { a.T = a.S == 0 ? 0 : a.cu_seqlens[a.S]; })},
      {"writes_beside_v", "attention_backward",
       ThenChange<AttentionBackwardArgs>([](const auto& a) { Floats(a.dv)[a.Hkv * a.D] = 0.0f; })},
  };
}

std::vector<WrongKernel> Elementwise() {
  return {
      {"first_element", "swiglu_forward",
       ThenChange<SwigluForwardArgs>([](const auto& a) { Floats(a.y)[0] *= 1.0001f; })},
      {"gate_up_of_another_row", "gate_up",
       ThenChange<GateUpArgs>([](const auto& a) { Floats(a.gate_up)[0] += 0.01f; })},
      {"gelu_for_silu", "gate_up_T100",
       WithArgs<GateUpArgs>([](auto& a) { a.gate = GateActivation::kGeluTanh; })},
      {"one_row_too_many", "down_backward", WithArgs<DownBackwardArgs>([](auto& a) {
         if (a.gate_up == nullptr) Floats(a.d_act)[a.T * a.I] = 0.0f;
       })},
      {"scale_off_by_1e_3", "adapted_product_M130",
       WithArgs<AdaptedProductArgs>([](auto& a) { a.scale *= 1.001f; })},
      {"frequencies_off_by_one", "turned_product_T70",
       WithArgs<TurnedProductArgs>([](auto& a) { ++a.turned.rope.inv_freq; })},
      {"adapters_left_out", "turned_product_T130",
       WithArgs<TurnedProductArgs>([](auto& a) { a.turned.up.scale = 0.0f; })},
      {"addend_left_out", "adapted_product_M257",
       WithArgs<AdaptedProductArgs>([](auto& a) { a.addend = nullptr; })},
      {"one_row_too_many", "adapted_gradient",
       ThenChange<AdaptedProductArgs>([](const auto& a) { Floats(a.y)[a.M * a.N] = 0.0f; })},
      {"gate_left_out", "down_backward",
       WithArgs<DownBackwardArgs>([](auto& a) { a.gate_up = nullptr; })},
      {"gate_and_up_swapped", "swiglu_backward", ThenChange<SwigluBackwardArgs>([](const auto& a) {
         std::swap(Floats(a.d_gate_up)[0], Floats(a.d_gate_up)[a.I]);
       })},
      {"accumulate_ignored", "axpy", WithArgs<AxpyArgs>([](auto& a) { a.accumulate = false; })},
      {"last_element_left_out", "axpy", WithArgs<AxpyArgs>([](auto& a) { a.n -= 1; })},
      {"mask_of_another_stream", "dropout",
       WithArgs<DropoutArgs>([](auto& a) { a.stream_lo += 1; })},
      {"mask_of_another_seed", "dropout", WithArgs<DropoutArgs>([](auto& a) { a.seed += 1; })},
      {"stream_hi_ignored", "dropout", WithArgs<DropoutArgs>([](auto& a) { a.stream_hi = 0; })},
      {"last_element_left_out", "widen", WithArgs<WidenArgs>([](auto& a) { a.n -= 1; })},
      {"last_row_left_out", "gather_rows", WithArgs<GatherRowsArgs>([](auto& a) { a.T -= 1; })},
      {"last_row_left_out", "gather_act_rows",
       WithArgs<GatherActRowsArgs>([](auto& a) { a.n -= 1; })},
      {"last_row_left_out", "scatter_act_rows",
       WithArgs<ScatterActRowsArgs>([](auto& a) { a.n -= 1; })},
  };
}

std::vector<WrongKernel> GemmAndLoss() {
  return {
      {"beta_ignored", "gemm", WithArgs<GemmArgs>([](auto& a) { a.beta = 0.0f; })},
      {"old_bytes_read", "gemm", WithArgs<GemmArgs>([](auto& a) { a.beta = 1.0f; })},
      {"alpha_ignored", "gemm", WithArgs<GemmArgs>([](auto& a) { a.alpha = 1.0f; })},
      {"k_one_short", "gemm", WithArgs<GemmArgs>([](auto& a) { a.K -= a.K > 0; })},
      {"gradient_not_rescaled", "loss_",
       [](WrappedDevice& device) {
         device.Replace<LossSliceArgs>([](TestDevice& inner, LossSliceArgs args) {
           const std::vector<float> grad(args.grad,
                                         args.grad + (args.with_grad ? args.n * args.H : 0));
           inner.Run(args);
           if (!args.first && args.with_grad) std::copy(grad.begin(), grad.end(), args.grad);
         });
       }},
      {"slice_offset_ignored", "loss_", WithArgs<LossSliceArgs>([](auto& a) { a.v0 = 0; })},
      {"target_row_of_first_slice", "loss_head",
       WithArgs<LossTargetRowsArgs>([](auto& a) { a.v0 = 0; })},
      {"scale_ignored", "loss_head", WithArgs<LossFinishArgs>([](auto& a) { a.scale = 1.0f; })},
  };
}

std::vector<WrongKernel> Lora() {
  return {
      {"addend_ignored", "lora_up_addend",
       WithArgs<LoraUpArgs>([](auto& a) { a.addend = nullptr; })},
      {"addend_instead_of_y", "lora_up_addend",
       WithArgs<LoraUpArgs>([](auto& a) { a.accumulate = false; })},
      {"old_bytes_read", "lora_up_addend",
       WithArgs<LoraUpArgs>([](auto& a) { a.accumulate = true; })},
      {"last_row_left_out", "lora_up_addend", WithArgs<LoraUpArgs>([](auto& a) { a.T -= 1; })},
      {"scale_off_by_1e_4", "lora_up_T", WithArgs<LoraUpArgs>([](auto& a) { a.scale *= 1.0001f; })},
  };
}

std::vector<WrongKernel> OptimizerAndNf4() {
  return {
      {"one_element_short", "sum_squares", WithArgs<SumSquaresArgs>([](auto& a) { a.n -= 1; })},
      {"bias_of_the_next_step", "adamw", WithArgs<AdamWArgs>([](auto& a) { a.t += 1; })},
      {"decay_ignored", "adamw", WithArgs<AdamWArgs>([](auto& a) { a.weight_decay = 0.0f; })},
      {"clip_ignored", "adamw", WithArgs<AdamWArgs>([](auto& a) { a.grad_scale = 1.0f; })},
      {"offset_ignored", "nf4_dequant",
       [](WrappedDevice& device) {
         device.Replace<Nf4DequantArgs>([](TestDevice& inner, Nf4DequantArgs args) {
           const float zero = 0.0f;
           if (args.nested_offset != nullptr) args.nested_offset = &zero;
           inner.Run(args);
         });
       }},
      {"nibbles_swapped", "nf4_dequant", ThenChange<Nf4DequantArgs>([](const auto& a) {
         if (a.n > 1) std::swap(Floats(a.dst)[0], Floats(a.dst)[1]);
       })},
  };
}

std::vector<WrongKernel> AllWrongKernels() {
  std::vector<WrongKernel> all;
  for (auto* group :
       {&NormAndRope, &Attention, &Elementwise, &GemmAndLoss, &Lora, &OptimizerAndNf4}) {
    for (WrongKernel& kernel : group()) all.push_back(std::move(kernel));
  }
  return all;
}

bool IsNoticed(const WrongKernel& kernel) {
  for (const OpCase& op : AllCases()) {
    if (op.name.rfind(kernel.op, 0) != 0) continue;
    WrappedDevice device(std::make_unique<CpuDevice>(cpu::CpuContextOptions{.threads = 1}));
    kernel.install(device);
    for (const Check& check : op.run(device, op.seed)) {
      if (!check.ok()) return true;
    }
  }
  return false;
}

TEST(WrongKernelTest, EveryOneIsNoticed) {
  for (const WrongKernel& kernel : AllWrongKernels()) {
    EXPECT_TRUE(IsNoticed(kernel)) << kernel.op << ": " << kernel.name;
  }
}

}  // namespace
}  // namespace soup::kernels
