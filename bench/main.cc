// soup-bench: one program, one run: what this machine reaches, and what training makes of it.
//
//   soup-bench --backend cuda --base llama-8b --row "batch=1 seq=512 budget=1.0GB"
//              --row "batch=8 seq=512 budget=9.9GB" --json out.json --breakdown
//
// docs/BENCHMARKS.md says how to read it.
#include <string>
#include <vector>

#include "bench/cli.h"

int main(int argc, char** argv) {
  return soup::bench::RunCli(std::vector<std::string>(argv + 1, argv + argc));
}
