// watch, wait, fetch.
#include <memory>

#include "client/cli.h"
#include "client/exit_codes.h"
#include "client/follow.h"
#include "engine/base/status_macros.h"

namespace soup::client {
namespace {

absl::Status RunFollow(Cli* cli, const std::string& name, const FollowFlags& flags) {
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const soup::v1::Job job, api->Get(name));
  return Follow(cli, api, job, flags);
}

absl::Status RunFetch(Cli* cli, const std::string& name, const std::string& output) {
  SOUP_ASSIGN_OR_RETURN(Api * api, cli->GetApi());
  SOUP_ASSIGN_OR_RETURN(const soup::v1::Job job, api->Get(name));
  if (!IsTerminal(job.state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " is ", JobState_Name(job.state()),
                     " and has no adapter yet; to wait for it: soupctl wait ", job.id()));
  }
  SOUP_RETURN_IF_ERROR(JobOutcome(job));
  return FetchTo(cli, api, job, output);
}

}  // namespace

void AddFollowCommands(CLI::App* app, Cli* cli) {
  struct Flags {
    std::string job;
    FollowFlags follow;
  };
  auto watch = std::make_shared<Flags>();
  CLI::App* verb = AddVerb(app, cli, "watch", "Show a job step by step until it ends, then fetch",
                           [cli, watch] { return RunFollow(cli, watch->job, watch->follow); });
  verb->add_option("job", watch->job, "Id, or name of your newest job of that name")->required();
  AddFollowFlags(verb, &watch->follow, /*steps=*/true);

  auto wait = std::make_shared<Flags>();
  wait->follow.show_steps = false;
  verb = AddVerb(app, cli, "wait", "Wait until a job ends, then fetch; the exit code tells how",
                 [cli, wait] { return RunFollow(cli, wait->job, wait->follow); });
  verb->add_option("job", wait->job, "Id, or name of your newest job of that name")->required();
  AddFollowFlags(verb, &wait->follow, /*steps=*/false);

  auto fetch = std::make_shared<Flags>();
  verb = AddVerb(app, cli, "fetch", "Download a job's adapter",
                 [cli, fetch] { return RunFetch(cli, fetch->job, fetch->follow.output); });
  verb->add_option("job", fetch->job, "Id, or name of your newest job of that name")->required();
  verb->add_option("--output", fetch->follow.output, "Put it here instead of the job's output");
}

}  // namespace soup::client
