// cache ls, cache prefetch, cache evict.
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "client/exit_codes.h"
#include "client/interrupt.h"
#include "client/units.h"
#include "client/views.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

using soup::v1::CacheEntry;
using soup::v1::ListCacheReply;
using soup::v1::PrefetchCacheRequest;
using soup::v1::PrefetchReply;

const std::vector<OutputFormat> kAllForms = {OutputFormat::kTable, OutputFormat::kJson,
                                             OutputFormat::kYaml, OutputFormat::kName};

std::string EntryName(const CacheEntry& entry) {
  return absl::StrCat(entry.fingerprint(), "/", entry.format());
}

absl::Status RunList(Cli* cli) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, cli->Format(OutputFormat::kTable, kAllForms));
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const ListCacheReply cache, api->ListCache());
  if (format == OutputFormat::kTable) {
    cli->terminal.Print(CacheTable(cache, cli->NowUnixMs(), cli->terminal.out_has_color()));
  } else if (format == OutputFormat::kName) {
    for (const CacheEntry& e : cache.entries()) cli->terminal.Print(EntryName(e) + "\n");
  } else {
    cli->PrintMessage(cache, format);
  }
  return absl::OkStatus();
}

struct PrefetchFlags {
  std::string path;
  std::string format = "nf4";
  bool no_double_quant = false;
};

absl::Status RunPrefetch(Cli* cli, const PrefetchFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(const OutputFormat format, cli->Format(OutputFormat::kName, kAllForms));
  if (flags.no_double_quant && flags.format != "nf4") {
    return UsageError("--no-double-quant is for --format nf4");
  }
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  PrefetchCacheRequest request;
  request.set_request_id(NewRequestId());
  request.mutable_base()->set_path(
      (std::filesystem::path(cli->CurrentDirectory()) / flags.path).lexically_normal().string());
  request.mutable_base()->set_format(flags.format);
  request.mutable_base()->set_double_quant(flags.format == "nf4" && !flags.no_double_quant);
  ReplyStream<PrefetchReply> stream(api->stub(), &Api::Stub::AsyncPrefetchCache, request);
  CacheEntry done;
  std::string stage;
  using Next = ReplyStream<PrefetchReply>::Next;
  for (Next next = stream.Read(absl::Minutes(10)); next != Next::kEnd;
       next = stream.Read(absl::Minutes(10))) {
    if (next == Next::kInterrupted) {
      return InterruptedError(PendingSignal(), "cache prefetch: interrupted");
    }
    if (next == Next::kIdle) {
      stream.Finish();
      return api->Explain(GivenUp(WaitResult::kTimeout), "cache prefetch");
    }
    const PrefetchReply& reply = stream.reply();
    if (reply.has_done()) done = reply.done();
    if (!reply.has_progress()) continue;
    cli->terminal.Status(ProgressText(reply.progress()));
    if (!cli->terminal.err_is_terminal() && reply.progress().stage() != stage) {
      cli->terminal.Say(Printable(reply.progress().stage()));
    }
    stage = reply.progress().stage();
  }
  cli->terminal.ClearStatus();
  SOUP_RETURN_IF_ERROR(api->Explain(stream.Finish(), absl::StrCat("cache prefetch ", flags.path)));
  if (done.fingerprint().empty()) {
    return absl::InternalError("cache prefetch: soupd ended without saying what it has cached");
  }
  if (format == OutputFormat::kName) {
    cli->terminal.Print(EntryName(done) + "\n");
  } else if (format == OutputFormat::kTable) {
    ListCacheReply one;
    *one.add_entries() = done;
    one.set_total_bytes(done.bytes());
    cli->terminal.Print(CacheTable(one, cli->NowUnixMs(), cli->terminal.out_has_color()));
  } else {
    cli->PrintMessage(done, format);
  }
  return absl::OkStatus();
}

// The one fingerprint that begins with `prefix`.
absl::StatusOr<std::string> WholeFingerprint(Api* api, const std::string& prefix) {
  SOUP_ASSIGN_OR_RETURN(const ListCacheReply cache, api->ListCache());
  std::string found;
  for (const CacheEntry& entry : cache.entries()) {
    if (!absl::StartsWith(entry.fingerprint(), prefix) || entry.fingerprint() == found) continue;
    if (!found.empty()) {
      return UsageError(absl::StrCat("\"", prefix,
                                     "\" begins more than one fingerprint; see: "
                                     "soupctl cache ls"));
    }
    found = entry.fingerprint();
  }
  if (found.empty()) {
    return ErrorWithExitCode(ExitCode::kNotFound,
                             absl::StrCat("no base in the cache has a fingerprint that begins with "
                                          "\"",
                                          prefix, "\"; see: soupctl cache ls"));
  }
  return found;
}

absl::Status RunEvict(Cli* cli, const std::string& what) {
  SOUP_ASSIGN_OR_RETURN(
      const OutputFormat format,
      cli->Format(OutputFormat::kTable,
                  {OutputFormat::kTable, OutputFormat::kJson, OutputFormat::kYaml}));
  const size_t slash = what.find('/');
  const std::string prefix = what.substr(0, slash);
  const std::string base_format = slash == std::string::npos ? "" : what.substr(slash + 1);
  if (prefix.empty()) return UsageError("which base? see: soupctl cache ls");
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const std::string fingerprint, WholeFingerprint(api, prefix));
  SOUP_ASSIGN_OR_RETURN(const soup::v1::EvictCacheReply reply,
                        api->EvictCache(fingerprint, base_format));
  if (format == OutputFormat::kTable) {
    cli->terminal.Say(absl::StrCat("evicted ", fingerprint,
                                   base_format.empty() ? "" : absl::StrCat("/", base_format), "; ",
                                   HumanSize(static_cast<double>(reply.freed_bytes())), " freed"));
  } else {
    cli->PrintMessage(reply, format);
  }
  return absl::OkStatus();
}

}  // namespace

void AddCacheCommands(CLI::App* app, Cli* cli) {
  CLI::App* cache = app->add_subcommand("cache", "The bases that soupd has quantised and stored");
  cache->require_subcommand(1);
  AddVerb(cache, cli, "ls", "List them", [cli] { return RunList(cli); });

  auto prefetch = std::make_shared<PrefetchFlags>();
  CLI::App* verb =
      AddVerb(cache, cli, "prefetch", "Quantise and store a base before a job needs it",
              [cli, prefetch] { return RunPrefetch(cli, *prefetch); });
  verb->add_option("path", prefetch->path, "The model's folder on soupd's host")->required();
  verb->add_option("--format", prefetch->format, "bf16 or nf4")
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "nf4"}));
  verb->add_flag("--no-double-quant", prefetch->no_double_quant,
                 "nf4 with its block scales in 32 bits");

  auto what = std::make_shared<std::string>();
  verb = AddVerb(cache, cli, "evict", "Remove a base from the disk (refused while in use)",
                 [cli, what] { return RunEvict(cli, *what); });
  verb->add_option("base", *what, "FINGERPRINT or FINGERPRINT/FORMAT; a beginning is enough")
      ->required();
}

}  // namespace soup::client
