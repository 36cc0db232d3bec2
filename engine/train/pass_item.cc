#include "engine/train/pass_item.h"

#include "engine/plan/pass_buffers.h"

namespace soup::engine {
namespace {

AttentionBlock AttentionOf(const PassEnv& env, const PassItemState& item) {
  const LoraOnDevice& lora = *item.lora;
  return MakeAttentionBlock(env.spec, item.T, lora.attention_targets * lora.columns(),
                            env.act_bytes);
}
MlpBlock MlpOf(const PassEnv& env, const PassItemState& item) {
  const LoraOnDevice& lora = *item.lora;
  return MakeMlpBlock(env.spec, item.T, (lora.targets - lora.attention_targets) * lora.columns(),
                      env.act_bytes, env.wt_bytes);
}

}  // namespace

int64_t AttentionBlockBytes(const PassEnv& env, const PassItemState& item) {
  return AttentionOf(env, item).bytes;
}
int64_t MlpBlockBytes(const PassEnv& env, const PassItemState& item) {
  return MlpOf(env, item).bytes;
}

void SetAttention(const PassEnv& env, const PassItemState& item, std::byte* block,
                  LayerActivations* a) {
  if (block == nullptr) return;
  const AttentionBlock at = AttentionOf(env, item);
  a->qkv = block + at.qkv;
  a->attention = block + at.attention;
  a->lse = reinterpret_cast<float*>(block + at.lse);
  a->middle = block + at.middle;
  if (env.spec.post_norms) {
    a->attention_out = a->middle + item.T * env.spec.hidden * env.act_bytes;
  }
  a->low_rank = block + at.low_rank;
}

void SetMlp(const PassEnv& env, const PassItemState& item, std::byte* block, LayerActivations* a) {
  if (block == nullptr) return;
  const MlpBlock at = MlpOf(env, item);
  a->gate_up = block + at.gate_up;
  a->mlp_low_rank = block + at.low_rank;
}

}  // namespace soup::engine
