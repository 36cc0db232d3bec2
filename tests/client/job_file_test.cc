#include "client/job_file.h"

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/exit_codes.h"
#include "client/job_schema.h"
#include "client/units.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/support/seeded_rng.h"
#include "tests/support/whole_file.h"

namespace soup::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFolder[] = "/home/ada/runs";

absl::StatusOr<JobFile> Parse(const std::string& text, std::vector<std::string> overrides = {}) {
  return ParseJobFile(text, "job.yaml", kFolder, "job",
                      {.overrides = std::move(overrides), .cwd = "/tmp/here"});
}

// The message of a job file that must be refused.
std::string Refused(const std::string& text, std::vector<std::string> overrides = {}) {
  const auto job = Parse(text, std::move(overrides));
  EXPECT_FALSE(job.ok()) << text;
  EXPECT_EQ(ExitCodeOf(job.status()), ExitCode::kUsage);
  return std::string(job.status().message());
}

// A valid job file with one more line.
std::string With(const std::string& line) {
  return absl::StrCat("base: {path: /models/m}\ndata: {train: t.jsonl}\n", line, "\n");
}

TEST(JobFileTest, DefaultsAreThoseOfTheProduct) {
  const auto job = Parse(With(""));
  ASSERT_TRUE(job.ok()) << job.status();
  const auto& s = job->spec;
  EXPECT_EQ(s.name(), "job");
  EXPECT_EQ(s.base().path(), "/models/m");
  EXPECT_EQ(s.base().format(), "nf4");
  EXPECT_TRUE(s.base().double_quant());
  EXPECT_EQ(s.data().train().name(), "t.jsonl");
  EXPECT_EQ(s.data().format(), "auto");
  EXPECT_EQ(s.data().max_length(), 2048);
  EXPECT_TRUE(s.data().packing());
  EXPECT_EQ(s.data().train_on(), "responses");
  EXPECT_EQ(s.data().validation_fraction(), 0);
  EXPECT_FALSE(s.data().has_validation_file());
  EXPECT_EQ(s.lora().r(), 16);
  EXPECT_EQ(s.lora().alpha(), 32);
  EXPECT_EQ(s.lora().dropout(), 0);
  EXPECT_THAT(s.lora().targets(), ElementsAre("all-linear"));
  EXPECT_FALSE(s.lora().rslora());
  EXPECT_FALSE(s.lora().has_init_adapter());
  EXPECT_EQ(s.training().task(), "sft");
  EXPECT_EQ(s.training().epochs(), 1);
  EXPECT_EQ(s.training().batch_size(), 8);
  EXPECT_EQ(s.training().learning_rate(), 2e-4);
  EXPECT_EQ(s.training().scheduler(), "cosine");
  EXPECT_EQ(s.training().warmup_ratio(), 0.03);
  EXPECT_EQ(s.training().weight_decay(), 0);
  EXPECT_EQ(s.training().max_grad_norm(), 1);
  EXPECT_EQ(s.training().seed(), 42u);
  EXPECT_EQ(s.training().save_every(), 100);
  EXPECT_EQ(s.training().keep_last(), 2);
  EXPECT_EQ(s.training().max_steps(), 0);
  EXPECT_EQ(s.training().adam_beta1(), 0.9);
  EXPECT_EQ(s.training().adam_beta2(), 0.999);
  EXPECT_EQ(s.training().adam_epsilon(), 1e-8);
  EXPECT_EQ(s.training().precision(), "auto");
  EXPECT_EQ(s.resources().vram_bytes(), 0);
  EXPECT_EQ(s.resources().priority(), "normal");
  EXPECT_EQ(s.resources().time_limit_seconds(), 0);
  EXPECT_EQ(s.output(), "");
}

TEST(JobFileTest, EveryKeyIsRead) {
  const auto job = Parse(R"(
name: notes-8b
base: {path: /models/Llama-3.1-8B, format: nf4, double_quant: false}
data: {train: train.jsonl, format: text, max_length: 512, packing: false, train_on: all,
       validation: dev/val.jsonl}
lora: {r: 8, alpha: 16.5, dropout: 0.1, targets: [q_proj, v_proj], rslora: true,
       init_from: ../old}
training: {task: dpo, epochs: 2.5, batch_size: 32, learning_rate: 1.0e-3, scheduler: linear,
           warmup_ratio: 0.1, weight_decay: 0.01, max_grad_norm: 0.5, seed: 18446744073709551615,
           save_every: 7, keep_last: 3, max_steps: 5000000000, adam_beta1: 0.8, adam_beta2: 0.95,
           adam_epsilon: 1e-6, precision: bf16}
resources: {vram: 3.4GB, priority: high, time_limit: 12h}
output: adapters/notes-8b
)");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto& s = job->spec;
  EXPECT_EQ(s.name(), "notes-8b");
  EXPECT_EQ(s.base().path(), "/models/Llama-3.1-8B");
  EXPECT_FALSE(s.base().double_quant());
  EXPECT_EQ(s.data().format(), "text");
  EXPECT_EQ(s.data().max_length(), 512);
  EXPECT_FALSE(s.data().packing());
  EXPECT_EQ(s.data().train_on(), "all");
  EXPECT_EQ(s.data().validation_file().name(), "dev/val.jsonl");
  EXPECT_EQ(s.lora().r(), 8);
  EXPECT_EQ(s.lora().alpha(), 16.5);
  EXPECT_EQ(s.lora().dropout(), 0.1);
  EXPECT_THAT(s.lora().targets(), ElementsAre("q_proj", "v_proj"));
  EXPECT_TRUE(s.lora().rslora());
  EXPECT_EQ(s.lora().init_adapter().name(), "../old/adapter_model.safetensors");
  EXPECT_EQ(s.lora().init_adapter_config().name(), "../old/adapter_config.json");
  EXPECT_EQ(s.training().task(), "dpo");
  EXPECT_EQ(s.training().epochs(), 2.5);
  EXPECT_EQ(s.training().batch_size(), 32);
  EXPECT_EQ(s.training().learning_rate(), 1e-3);
  EXPECT_EQ(s.training().scheduler(), "linear");
  EXPECT_EQ(s.training().warmup_ratio(), 0.1);
  EXPECT_EQ(s.training().weight_decay(), 0.01);
  EXPECT_EQ(s.training().max_grad_norm(), 0.5);
  EXPECT_EQ(s.training().seed(), UINT64_MAX);
  EXPECT_EQ(s.training().save_every(), 7);
  EXPECT_EQ(s.training().keep_last(), 3);
  EXPECT_EQ(s.training().max_steps(), 5000000000);
  EXPECT_EQ(s.training().adam_beta1(), 0.8);
  EXPECT_EQ(s.training().adam_beta2(), 0.95);
  EXPECT_EQ(s.training().adam_epsilon(), 1e-6);
  EXPECT_EQ(s.training().precision(), "bf16");
  EXPECT_EQ(s.resources().vram_bytes(), 3400000000);
  EXPECT_EQ(s.resources().priority(), "high");
  EXPECT_EQ(s.resources().time_limit_seconds(), 43200);
  EXPECT_EQ(s.output(), "/home/ada/runs/adapters/notes-8b");
  ASSERT_EQ(job->files.size(), 4u);
  EXPECT_EQ(job->files[0].path, "/home/ada/runs/train.jsonl");
  EXPECT_EQ(job->files[0].where, "job.yaml:4:15: data.train");
  EXPECT_EQ(job->files[1].path, "/home/ada/runs/dev/val.jsonl");
  EXPECT_EQ(job->files[2].path, "/home/ada/old/adapter_model.safetensors");
  EXPECT_EQ(job->files[3].path, "/home/ada/old/adapter_config.json");
}

TEST(JobFileTest, EveryFieldOfTheSpecHasAKey) {
  // A field that somebody adds to the proto must not be unreachable from a job file.
  const std::map<std::string, std::string> special = {
      {"data.sources", "data.train"},
      {"data.validation_fraction", "data.validation"},
      {"data.validation_file", "data.validation"},
      {"lora.init_adapter", "lora.init_from"},
      {"lora.init_adapter_config", "lora.init_from"},
      {"resources.vram_bytes", "resources.vram"},
      {"resources.time_limit_seconds", "resources.time_limit"}};
  std::set<std::string> known;
  for (const JobKey& key : JobKeys()) known.insert(FullName(key));
  const auto* spec = soup::v1::JobSpec::descriptor();
  for (int i = 0; i < spec->field_count(); ++i) {
    const auto* field = spec->field(i);
    if (field->message_type() == nullptr) {
      EXPECT_EQ(known.count(field->name()), 1u) << field->full_name();
      continue;
    }
    for (int j = 0; j < field->message_type()->field_count(); ++j) {
      std::string name = absl::StrCat(field->name(), ".", field->message_type()->field(j)->name());
      if (const auto it = special.find(name); it != special.end()) name = it->second;
      EXPECT_EQ(known.count(name), 1u) << name;
    }
  }
}

TEST(JobFileTest, UnknownKeysNameTheNearestAndThePlace) {
  EXPECT_EQ(Refused(With("training: {\n  epochs: 1,\n  lerning_rate: 1}")),
            "job.yaml:5:3: unknown key \"lerning_rate\" in \"training\"; did you mean "
            "\"learning_rate\"?");
  EXPECT_EQ(Refused(With("outptu: x")),
            "job.yaml:3:1: unknown key \"outptu\"; did you mean \"output\"?");
  EXPECT_EQ(Refused(With("trainnig: {epochs: 1}")),
            "job.yaml:3:1: unknown key \"trainnig\"; did you mean \"training\"?");
  EXPECT_THAT(Refused(With("epochs: 3")), HasSubstr("did you mean \"epochs\" under \"training\"?"));
  EXPECT_THAT(Refused(With("lora: {Batch-Size: 3}")),
              HasSubstr("did you mean \"batch_size\" under \"training\"?"));
  EXPECT_THAT(Refused(With("training: {lr: 3}")), HasSubstr("did you mean \"learning_rate\"?"));
  EXPECT_THAT(Refused(With("training: {bf16: true}")), HasSubstr("did you mean \"precision\"?"));
  EXPECT_THAT(Refused(With("lora: {rank: 3}")), HasSubstr("did you mean \"r\"?"));
  EXPECT_THAT(Refused(With("lora: {output: 3}")), HasSubstr("\"output\" at the top level"));
  EXPECT_THAT(Refused(With("lora: {quite_another_thing: 3}")),
              HasSubstr("allowed here: r, alpha, dropout, targets, rslora, init_from"));
  EXPECT_THAT(Refused(With("<<: {name: x}")), HasSubstr("unknown key \"<<\""));
  EXPECT_THAT(Refused(With("? [a, b]\n: 1")), HasSubstr("a key must be a word, found a list"));
}

TEST(JobFileTest, EveryErrorIsToldAtOnce) {
  const std::string message = Refused("base: {path: 1, fromat: nf4}\nlora: {r: 0}\nnaem: x");
  EXPECT_THAT(message, HasSubstr("job.yaml:1:17: unknown key \"fromat\""));
  EXPECT_THAT(message, HasSubstr("job.yaml:2:11: \"lora.r\""));
  EXPECT_THAT(message, HasSubstr("job.yaml:3:1: unknown key \"naem\""));
  EXPECT_THAT(message, HasSubstr("\"data.train\" is missing: a file"));
}

TEST(JobFileTest, WrongTypesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"lora: {r: 0}", "job.yaml:3:11: \"lora.r\" is a whole number, 1 to 1024, found \"0\""},
      {"lora: {r: 16.5}", "\"lora.r\" is a whole number, 1 to 1024, found \"16.5\""},
      {"lora: {r: \"16\"}", "found \"16\" in quotes; remove the quotes"},
      {"lora: {r: [16]}", "found a list"},
      {"lora: {r: }", "found nothing"},
      {"lora: {r: ~}", "found"},
      {"lora: {alpha: 0}", "\"lora.alpha\" is a number, above 0, at most 1000000, found \"0\""},
      {"lora: {alpha: .inf}", "\"lora.alpha\" is a number"},
      {"lora: {alpha: nan}", "\"lora.alpha\" is a number"},
      {"lora: {dropout: 1}", "\"lora.dropout\" is a number, 0 to below 1, found \"1\""},
      {"lora: {rslora: yes}", "\"lora.rslora\" is true or false, found \"yes\""},
      {"lora: {targets: q_proj}", "\"lora.targets\" is all-linear, or a list of module names"},
      {"lora: {targets: []}", "\"lora.targets\" is all-linear, or a list of module names"},
      {"lora: {targets: [q_proj, q_proj]}", "\"q_proj\" stands twice in lora.targets"},
      {"lora: {targets: [q_proj, all-linear]}", "all-linear stands alone"},
      {"lora: {targets: [[q_proj]]}", "found a list"},
      {"lora: 16", "\"lora\" is a group of keys, found \"16\"; e.g. lora: {r: 16}"},
      {"lora: ", "\"lora\" is a group of keys, found nothing"},
      {"training: {seed: -1}", "\"training.seed\" is a whole number"},
      {"training: {seed: 18446744073709551616}", "\"training.seed\" is a whole number"},
      {"training: {batch_size: 99999999999}",
       "\"training.batch_size\" is a whole number, 1 to 1048576"},
      {"training: {scheduler: cosin}",
       "one of constant, linear, cosine, found \"cosin\"; did you "
       "mean cosine?"},
      {"training: {precision: fp16}",
       "\"training.precision\" is one of auto, bf16, fp32, found \"fp16\""},
      {"training: {learning_rate: 2e-4x}", "\"training.learning_rate\" is a number"},
      {"training: {epochs: !!int 3}", "has the YAML tag tag:yaml.org,2002:int"},
      {"resources: {vram: 3400000000}", "auto, or a size with a unit such as 3.4GB"},
      {"resources: {vram: 3 potatoes}", "auto, or a size with a unit"},
      {"resources: {vram: 0GB}", "auto, or a size with a unit"},
      {"resources: {time_limit: 12}", "none, or a duration with a unit"},
      {"resources: {time_limit: 1m2h}", "none, or a duration with a unit"},
      {"resources: {priority: urgent}", "one of low, normal, high, found \"urgent\""},
      {"name: {a: b}", "\"name\" is text, found a group of keys"},
      {"name: \"\"", "\"name\" is text"},
  };
  for (const auto& [line, message] : cases) {
    EXPECT_THAT(Refused(With(line)), HasSubstr(message)) << line;
  }
  EXPECT_THAT(Refused("base: {path: /m}\ndata: {train: t, validation: 0.6}"),
              HasSubstr("\"data.validation\" is a number, 0 to 0.5, or a file, found \"0.6\""));
  EXPECT_THAT(Refused("base: {path: /m, format: bf16, double_quant: true}\ndata: {train: t}"),
              HasSubstr("base.double_quant: true has no meaning with base.format: bf16"));
  EXPECT_THAT(Refused("base: {path: /m, format: fp8}\ndata: {train: t}"),
              HasSubstr("\"base.format\" is one of bf16, nf4, found \"fp8\""));
}

TEST(JobFileTest, DuplicateKeysAndSecondDocumentsAreRefused) {
  EXPECT_EQ(Refused(With("name: \"  \"")),
            "job.yaml: name \"  \" is blank: give the job a name, or leave it out");
  EXPECT_EQ(Refused(With("name: a\nname: b")),
            "job.yaml:4:1: key \"name\" is given twice; keep one of them");
  EXPECT_EQ(Refused(With("lora: {r: 8, r: 16}")),
            "job.yaml:3:14: key \"r\" is given twice in \"lora\"; keep one of them");
  EXPECT_THAT(Refused(With("---\nname: b")), HasSubstr("a second document begins here"));
}

TEST(JobFileTest, BrokenYamlNamesTheLine) {
  EXPECT_THAT(Refused("name: x\nbase: {path: /m\ndata: [\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(Refused("name: x\nlora:\n  r: 8\n bad\n"),
              ::testing::MatchesRegex("job\\.yaml:[345]:[0-9]+: not valid YAML: .*"));
  EXPECT_THAT(Refused(""), HasSubstr("is empty"));
  EXPECT_THAT(Refused("- a\n- b\n"), HasSubstr("found a list"));
  EXPECT_THAT(Refused("just words"), HasSubstr("a job file is a group of keys"));
  EXPECT_THAT(Refused(With(absl::StrCat("lora: ", std::string(5000, '[')))),
              HasSubstr("not valid YAML"));
  EXPECT_THAT(Refused(With("name: *nowhere")), HasSubstr("not valid YAML"));
}

TEST(JobFileTest, ValidationIsANumberOrAFile) {
  const auto fraction = Parse("base: {path: /m}\ndata: {train: t, validation: 0.05}");
  ASSERT_TRUE(fraction.ok()) << fraction.status();
  EXPECT_EQ(fraction->spec.data().validation_fraction(), 0.05);
  EXPECT_EQ(fraction->files.size(), 1u);
  const auto file = Parse("base: {path: /m}\ndata: {train: t, validation: \"0.05\"}");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->spec.data().validation_file().name(), "0.05");
  ASSERT_EQ(file->files.size(), 2u);
  EXPECT_EQ(file->files[1].path, "/home/ada/runs/0.05");
}

TEST(JobFileTest, OverridesWinAndTheirPathsStartWhereTheCallerIs) {
  const auto job = Parse(With("training: {epochs: 1}"),
                         {"training.epochs=3", "lora.targets=[q_proj]", "data.train=mine.jsonl",
                          "output=out", "name=other", "base.path=/elsewhere"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.training().epochs(), 3);
  EXPECT_THAT(job->spec.lora().targets(), ElementsAre("q_proj"));
  EXPECT_EQ(job->files[0].path, "/tmp/here/mine.jsonl");
  EXPECT_EQ(job->files[0].where, "--set data.train=mine.jsonl: data.train");
  EXPECT_EQ(job->spec.output(), "/tmp/here/out");
  EXPECT_EQ(job->spec.name(), "other");
  EXPECT_EQ(job->spec.base().path(), "/elsewhere");
  EXPECT_THAT(Refused(With(""), {"training.epoch=3"}),
              HasSubstr("--set training.epoch=3: unknown key \"training.epoch\"; did you mean "
                        "\"epochs\"?"));
  EXPECT_THAT(Refused(With(""), {"training.epochs"}), HasSubstr("wants key=value"));
  EXPECT_THAT(Refused(With(""), {"lora.r=zero"}), HasSubstr("\"lora.r\" is a whole number"));
  EXPECT_THAT(Refused(With(""), {"lora.targets=[q"}), HasSubstr("not YAML"));
}

TEST(JobFileTest, CasesOfOtherTrainersFaultsParse) {
  const auto job = Parse(R"(name: cancel-long
base: {path: /x/base, format: bf16}
data: {train: train.jsonl, format: auto, max_length: 512, packing: false, train_on: responses, validation: 0}
lora: {r: 4, alpha: 8, dropout: 0.0, targets: all-linear, rslora: false}
training: {task: sft, epochs: 2000, batch_size: 1, learning_rate: 1.0e-9, scheduler: constant, warmup_ratio: 0.0,
           weight_decay: 0.0, max_grad_norm: 1.0, seed: 42, save_every: 100}
resources: {vram: auto, priority: normal, time_limit: 1h}
output: out/cancel-long
)");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_FALSE(job->spec.base().double_quant()) << "means nothing for bf16";
  EXPECT_EQ(job->spec.training().learning_rate(), 1e-9);
}

TEST(JobFileTest, ByteOrderMarkAndCarriageReturnsAreRead) {
  const auto job = Parse(
      "\xEF\xBB\xBF"
      "name: x\r\nbase: {path: /m}\r\ndata:\r\n  train: t.jsonl\r\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->spec.name(), "x");
  EXPECT_EQ(job->files[0].path, "/home/ada/runs/t.jsonl");
}

// ---- several sources ----

TEST(JobFileTest, TrainMayBeAListOfSources) {
  const auto job = Parse(
      "base: {path: /models/m}\n"
      "data:\n"
      "  train:\n"
      "    - {path: a.jsonl, weight: 2}\n"
      "    - {path: ../b.csv, weight: 0.5, format: alpaca}\n"
      "    - /abs/c.json\n"
      "  validation: v.jsonl\n");
  ASSERT_TRUE(job.ok()) << job.status();
  const auto& data = job->spec.data();
  EXPECT_FALSE(data.has_train());
  ASSERT_EQ(data.sources_size(), 3);
  EXPECT_EQ(data.sources(0).file().name(), "a.jsonl");
  EXPECT_EQ(data.sources(0).weight(), 2);
  EXPECT_EQ(data.sources(1).format(), "alpaca");
  EXPECT_EQ(data.sources(2).weight(), 1);
  std::vector<std::string> paths;
  for (const LocalFile& file : job->files) paths.push_back(file.path);
  EXPECT_THAT(paths, ElementsAre("/home/ada/runs/a.jsonl", "/home/ada/b.csv", "/abs/c.json",
                                 "/home/ada/runs/v.jsonl"));
  EXPECT_EQ(job->files[1].where, "job.yaml:5:7: data.train[1]");
  auto spec = job->spec;
  FileRefOf(&spec, job->files[1].slot, job->files[1].source)->set_sha256("x");
  EXPECT_EQ(spec.data().sources(1).file().sha256(), "x");

  // The last one wins, whole.
  const auto one = Parse("base: {path: /models/m}\ndata: {train: [a.jsonl, b.jsonl]}\n",
                         {"data.train=only.jsonl"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->spec.data().train().name(), "only.jsonl");
  EXPECT_EQ(one->spec.data().sources_size(), 0);
  EXPECT_EQ(one->files.size(), 1u);
  const auto list = Parse(With(""), {"data.train=[x.jsonl, {path: y.jsonl, weight: 3}]"});
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_FALSE(list->spec.data().has_train());
  EXPECT_EQ(list->files[1].path, "/tmp/here/y.jsonl");
}

TEST(JobFileTest, SourcesAreCheckedKeyByKey) {
  const auto refused = [](const std::string& train) {
    return Refused("base: {path: /models/m}\ndata:\n  train: " + train + "\n");
  };
  EXPECT_THAT(refused("[{path: a, wieght: 2}]"),
              HasSubstr("job.yaml:3:21: unknown key \"wieght\" in a source of \"data.train\"; did "
                        "you mean \"weight\"?"));
  EXPECT_THAT(refused("[{path: a, weight: 101}]"), HasSubstr("0 to 100, found \"101\""));
  EXPECT_THAT(refused("[{path: a, weight: -1}]"), HasSubstr("0 to 100"));
  EXPECT_THAT(refused("[{path: a, weight: '1'}]"), HasSubstr("in quotes"));
  EXPECT_THAT(refused("[{weight: 1}]"), HasSubstr("a source has no path"));
  EXPECT_THAT(refused("[{path: a, path: b}]"), HasSubstr("\"path\" is given twice"));
  EXPECT_THAT(refused("[[a]]"), HasSubstr("a file, or a list of files"));
  EXPECT_THAT(refused("[]"), HasSubstr("a file, or a list of files"));
  EXPECT_THAT(Refused("base: {path: /models/m}\ndata: {train: a, too_long: trim}\n"),
              HasSubstr("one of truncate, drop, split"));
}

// A spec with every key at random, as YAML that means it.
soup::v1::JobSpec RandomSpec(testing::SeededRng& rng) {
  const auto pick = [&](std::vector<std::string> v) {
    return v[static_cast<size_t>(rng.Int(0, static_cast<int64_t>(v.size()) - 1))];
  };
  const auto real = [&] { return rng.Real(0, 1); };
  const auto coin = [&] { return rng.Chance(0.5); };
  soup::v1::JobSpec s;
  s.set_name(pick({"a", "123", "0x1F", "true", "null", "with: colon", "häßlich ☃", "\"q\"", "- x",
                   "#c", "tab\there", "~", "1e5", " lead", "@at"}));
  s.mutable_base()->set_path(pick({"/models/m", "/models/with space", "/m/ü#x"}));
  s.mutable_base()->set_format(pick({"bf16", "nf4"}));
  s.mutable_base()->set_double_quant(s.base().format() == "nf4" && coin());
  auto* d = s.mutable_data();
  const auto file = [&] {
    return pick({"t.jsonl", "../x/t.jsonl", "0.5", "/abs/t", "sp ace.jsonl", "{a}", "#x"});
  };
  if (coin()) {
    d->mutable_train()->set_name(file());
  } else {
    for (int64_t n = rng.Int(1, 4); n > 0; --n) {
      auto* source = d->add_sources();
      source->mutable_file()->set_name(file());
      source->set_weight(coin() ? 1 : real() * 100);
      if (coin()) source->set_format(pick({"auto", "alpaca", "csv"}));
    }
  }
  d->set_format(pick({"auto", "text"}));
  d->set_too_long(pick({"truncate", "drop", "split"}));
  d->set_max_errors(rng.Int(0, 1000));
  d->set_max_length(static_cast<int>(rng.Int(2, 4097)));
  d->set_packing(coin());
  d->set_train_on(pick({"responses", "all"}));
  if (coin()) {
    d->set_validation_fraction(real() / 2);
  } else {
    d->mutable_validation_file()->set_name(pick({"v.jsonl", "0.25", "1e-3", "nan", "inf"}));
  }
  auto* l = s.mutable_lora();
  l->set_r(static_cast<int>(rng.Int(1, 256)));
  l->set_alpha(real() * 64 + 1e-3);
  l->set_dropout(real() * 0.99);
  if (coin()) {
    l->add_targets("all-linear");
  } else {
    l->add_targets("q_proj");
    l->add_targets(pick({"down_proj", "1", "x y"}));
  }
  l->set_rslora(coin());
  if (coin()) {
    const std::string folder = pick({"old", "../a b", ".", "/abs/old"});
    l->mutable_init_adapter()->set_name(folder + "/adapter_model.safetensors");
    l->mutable_init_adapter_config()->set_name(folder + "/adapter_config.json");
  }
  auto* t = s.mutable_training();
  t->set_task(pick({"sft", "dpo"}));
  t->set_epochs(real() * 10 + 1e-6);
  t->set_batch_size(static_cast<int>(rng.Int(1, 1000)));
  t->set_learning_rate(real() * 1e-3 + 1e-12);
  t->set_scheduler(pick({"constant", "linear", "cosine"}));
  t->set_warmup_ratio(real());
  t->set_weight_decay(real());
  t->set_max_grad_norm(real() * 100);
  t->set_seed(static_cast<uint64_t>(rng.Int(INT64_MIN, INT64_MAX)));
  t->set_save_every(static_cast<int>(rng.Int(0, 999)));
  t->set_keep_last(static_cast<int>(rng.Int(1, 10)));
  t->set_max_steps(rng.Int(0, int64_t{1} << 40));
  t->set_adam_beta1(real() * 0.99);
  t->set_adam_beta2(real() * 0.99);
  t->set_adam_epsilon(real() * 1e-7 + 1e-12);
  t->set_precision(pick({"auto", "bf16", "fp32"}));
  auto* r = s.mutable_resources();
  r->set_vram_bytes(coin() ? rng.Int(0, int64_t{1} << 44) : 0);
  r->set_priority(pick({"low", "normal", "high"}));
  r->set_time_limit_seconds(coin() ? rng.Int(0, 1000000) : 0);
  if (coin()) s.set_output(pick({"/o/out", "/o/o u t", "/o/é"}));
  return s;
}

TEST(JobFileTest, RenderedAndParsedAgainIsTheSameSpec) {
  testing::SeededRng rng;
  SCOPED_TRACE(rng.Trace());
  for (int i = 0; i < 300; ++i) {
    const soup::v1::JobSpec spec = RandomSpec(rng);
    const std::string text = RenderJobFile(spec);
    const auto again = Parse(text);
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    std::string difference;
    google::protobuf::util::MessageDifferencer differencer;
    differencer.ReportDifferencesToString(&difference);
    EXPECT_TRUE(differencer.Compare(spec, again->spec)) << difference << "\n" << text;
  }
}

TEST(UnitsTest, SizesAndDurations) {
  EXPECT_EQ(*ParseSize("3.4GB"), 3400000000);
  EXPECT_EQ(*ParseSize("3GiB"), int64_t{3} << 30);
  EXPECT_EQ(*ParseSize("512MiB"), 512 << 20);
  EXPECT_EQ(*ParseSize("1 kib"), 1024);
  EXPECT_EQ(*ParseSize("17B"), 17);
  for (const char* bad : {"", "3", "GB", "-3GB", "3GBx", "1.2.3GB", "1e300TB", "0B", "0.1B"}) {
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
  }
  EXPECT_EQ(*ParseDuration("90s"), 90);
  EXPECT_EQ(*ParseDuration("1h30m"), 5400);
  EXPECT_EQ(*ParseDuration("1.5h"), 5400);
  EXPECT_EQ(*ParseDuration("2d"), 172800);
  for (const char* bad : {"", "12", "h", "-1h", "1h1h", "1m1h", "1y", "0s", "1e3s"}) {
    EXPECT_FALSE(ParseDuration(bad).ok()) << bad;
  }
  EXPECT_EQ(HumanSize(3.5 * (1 << 30)), "3.5 GiB");
  EXPECT_EQ(HumanDuration(3725), "1h 02m");
}

TEST(JobSchemaTest, DocumentationHasEveryKeyWithItsTypeAndDefault) {
  const std::string docs = testing::ReadWhole(absl::StrCat(SOUP_SOURCE_DIR, "/docs/JOB_FILE.md"));
  ASSERT_FALSE(docs.empty());
  for (const JobKey& key : JobKeys()) {
    const std::string value = key.required ? "required"
                              : key.default_text == nullptr
                                  ? "–"
                                  : absl::StrCat("`", key.default_text, "`");
    const std::string row = absl::StrCat("| `", FullName(key), "` | ", TypeText(key), " | ", value,
                                         " | ", key.meaning, " |");
    EXPECT_THAT(docs, HasSubstr(row));
  }
}

}  // namespace
}  // namespace soup::client
