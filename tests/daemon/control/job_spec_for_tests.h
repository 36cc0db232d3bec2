// A spec that passes the validator, to be changed by tests.
#ifndef SOUP_TESTS_DAEMON_CONTROL_JOB_SPEC_FOR_TESTS_H_
#define SOUP_TESTS_DAEMON_CONTROL_JOB_SPEC_FOR_TESTS_H_

#include <string>

#include "soup/v1/job.pb.h"

namespace soup::daemon {

inline soup::v1::JobSpec GoodSpec(const std::string& name, const std::string& base_path,
                                  const std::string& train_sha256 = std::string(64, 'a')) {
  soup::v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_base()->set_path(base_path);
  spec.mutable_base()->set_format("nf4");
  spec.mutable_base()->set_double_quant(true);
  auto* data = spec.mutable_data();
  data->mutable_train()->set_sha256(train_sha256);
  data->mutable_train()->set_name("train.jsonl");
  data->mutable_train()->set_size_bytes(10);
  data->set_format("auto");
  data->set_max_length(2048);
  data->set_packing(true);
  data->set_train_on("responses");
  auto* lora = spec.mutable_lora();
  lora->set_r(16);
  lora->set_alpha(32);
  lora->add_targets("all-linear");
  auto* training = spec.mutable_training();
  training->set_task("sft");
  training->set_epochs(1);
  training->set_batch_size(8);
  training->set_learning_rate(2e-4);
  training->set_scheduler("cosine");
  training->set_warmup_ratio(0.03);
  training->set_max_grad_norm(1.0);
  training->set_seed(42);
  training->set_save_every(100);
  training->set_keep_last(2);
  training->set_adam_beta1(0.9);
  training->set_adam_beta2(0.999);
  training->set_adam_epsilon(1e-8);
  spec.mutable_resources()->set_priority("normal");
  spec.set_output("adapters/x");
  return spec;
}

}  // namespace soup::daemon

#endif  // SOUP_TESTS_DAEMON_CONTROL_JOB_SPEC_FOR_TESTS_H_
