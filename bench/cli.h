// The program's command line, as a function: tests run it whole.
#ifndef SOUP_BENCH_CLI_H_
#define SOUP_BENCH_CLI_H_

#include <string>
#include <vector>

namespace soup::bench {

// Prints to stdout (table) and stderr (errors); returns the exit status: 0, 1 when a row failed, 2
// when the command line is wrong.
int RunCli(const std::vector<std::string>& arguments);

}  // namespace soup::bench

#endif  // SOUP_BENCH_CLI_H_
