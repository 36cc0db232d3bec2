// What soupd answers, as tables and lines for people. Texts of others pass through Printable.
// Pure functions; thread-safe.
#ifndef SOUP_CLIENT_VIEWS_H_
#define SOUP_CLIENT_VIEWS_H_

#include <string>
#include <vector>

#include "client/terminal.h"
#include "soup/v1/soup.pb.h"

namespace soup::client {

Color ColorOf(soup::v1::JobState state);

std::string JobTable(const std::vector<soup::v1::Job>& jobs, int64_t now_unix_ms, bool color);
std::string JobDetails(const soup::v1::Job& job, bool color);
std::string DatasetLines(const soup::v1::DatasetReport& report);
std::string PlanTable(const soup::v1::PlanReply& plan, bool color);
std::string StepTable(const std::vector<soup::v1::StepRecord>& steps, bool color);
std::string CacheTable(const soup::v1::ListCacheReply& cache, int64_t now_unix_ms, bool color);
std::string NodeDetails(const soup::v1::Node& node, bool color);
// Tokens with the supervised ones in colour, or in 「…」 without.
std::string PreviewText(const soup::v1::PreviewDataReply& preview, bool color);

// Tokens a second, and the part of the step in which compute waited for copies.
double TokensPerSecond(const soup::v1::StepRecord& step);
double StallPercent(const soup::v1::StepRecord& step);
// "step 12/300  loss 1.2345  grad 0.52  lr 1.9e-04  1234 tok/s  stall 2.1%  3.2s  ETA 12m 03s".
// steps_total 0: not known. eta_seconds negative: not known.
std::string StepLine(const soup::v1::StepRecord& step, int64_t steps_total, double eta_seconds);
// "quantise 45% [====>    ] 1.2 GiB of 2.7 GiB".
std::string ProgressText(const soup::v1::Progress& progress);

}  // namespace soup::client

#endif  // SOUP_CLIENT_VIEWS_H_
