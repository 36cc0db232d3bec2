#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "daemon/control/auth.h"
#include "daemon/control/config.h"
#include "daemon/control/sha256.h"
#include "daemon/control/state_lock.h"
#include "daemon/control/text.h"
#include "tests/support/temp_dir.h"
#include "tests/support/whole_file.h"

namespace soup::daemon {
namespace {

using soup::testing::WriteWhole;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteWhole(dir_ / "worker", "#!/bin/sh\n");
    ASSERT_EQ(chmod((dir_ / "worker").c_str(), 0700), 0);
  }
  absl::StatusOr<CommandLine> Parse(std::vector<std::string> flags, bool with_places = true) {
    if (with_places) {
      flags.insert(flags.begin(),
                   {"--state-dir", dir_ / "state", "--worker-binary", dir_ / "worker"});
    }
    flags.insert(flags.begin(), "soupd");
    std::vector<const char*> argv;
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    return ParseCommandLine(static_cast<int>(argv.size()), argv.data());
  }
  void ExpectRefused(const std::vector<std::string>& flags, const std::string& says) {
    const auto line = Parse(flags);
    EXPECT_EQ(line.status().code(), absl::StatusCode::kInvalidArgument) << says;
    EXPECT_THAT(std::string(line.status().message()), HasSubstr(says));
  }
  soup::testing::TempDir dir_{soup::testing::TempDir::kInMemory};
};

TEST_F(ConfigTest, DefaultsFollowTheStateDirectory) {
  const auto line = Parse({});
  ASSERT_TRUE(line.ok()) << line.status();
  const Config& c = line->config;
  EXPECT_EQ(c.state_dir, dir_ / "state");
  EXPECT_EQ(c.cache_dir, dir_ / "state/cache");
  EXPECT_EQ(c.listen, "unix:" + (dir_ / "state/soupd.sock"));
  EXPECT_EQ(c.metrics_listen, "127.0.0.1:9464");
  EXPECT_EQ(c.socket_mode, 0666u);
  setenv("SOUP_STATE_DIR", (dir_ / "from-env").c_str(), 1);
  EXPECT_EQ(Parse({"--worker-binary", dir_ / "worker"}, false)->config.state_dir,
            dir_ / "from-env");
  unsetenv("SOUP_STATE_DIR");
  setenv("XDG_STATE_HOME", (dir_ / "xdg").c_str(), 1);
  EXPECT_EQ(Parse({"--worker-binary", dir_ / "worker"}, false)->config.state_dir,
            dir_ / "xdg/soupd");
  unsetenv("XDG_STATE_HOME");
}

TEST_F(ConfigTest, FlagsOverTheFileOverDefaults) {
  ASSERT_EQ(mkdir((dir_ / "m1").c_str(), 0700), 0);
  ASSERT_EQ(mkdir((dir_ / "m2").c_str(), 0700), 0);
  WriteWhole(dir_ / "soupd.yaml", "model_root: [" + (dir_ / "m1") + ", " + (dir_ / "m2") +
                                      "]\nquota-running: 3\nquota_queued: 7\ncache-cap: 2GiB\n"
                                      "admin_uid: [7, 8]\n");
  const auto line = Parse({"--config", dir_ / "soupd.yaml", "--quota-running", "5"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.quota_running, 5);
  EXPECT_EQ(line->config.quota_queued, 7);
  EXPECT_EQ(line->config.cache_cap_bytes, int64_t{2} << 30);
  EXPECT_THAT(line->config.model_roots, ElementsAre(dir_ / "m1", dir_ / "m2"));
  EXPECT_THAT(line->config.admin_uids, ElementsAre(7, 8));
}

TEST_F(ConfigTest, UnknownAndBrokenKeysAreRefused) {
  const auto with_file = [&](const std::string& text, const std::string& says) {
    WriteWhole(dir_ / "soupd.yaml", text);
    ExpectRefused({"--config", dir_ / "soupd.yaml"}, says);
  };
  with_file("quota_runing: 3\n", "quota-runing");
  with_file("quota_running: 3\nquota-running: 4\n", "twice");
  with_file("quota_running: {a: b}\n", "quota-running");
  with_file("- a\n", "map");
  with_file("a: [\n", "not YAML");
  with_file("quota_running: many\n", "quota-running");
  ExpectRefused({"--config", dir_ / "none.yaml"}, "none.yaml");
  ExpectRefused({"--no-such-flag"}, "no-such-flag");
}

TEST_F(ConfigTest, WhatCannotWorkIsRefusedWithTheRemedy) {
  ExpectRefused({"--listen", "tcp:1"}, "--listen-tcp");
  ExpectRefused({"--listen", "unix:/" + std::string(120, 'x')}, "at most 107");
  ExpectRefused({"--listen-tcp", "0.0.0.0:1"}, "refused without TLS");
  ExpectRefused({"--listen-tcp", "0.0.0.0:1", "--tls-cert", "c", "--tls-key", "k"},
                "refused without authentication");
  ExpectRefused({"--listen-tcp", "nonsense", "--tls-cert", "c", "--tls-key", "k"}, "HOST:PORT");
  ExpectRefused({"--token-file", "t"}, "--listen-tcp");
  ExpectRefused({"--metrics-listen", "9464"}, "HOST:PORT");
  ExpectRefused({"--socket-mode", "0999"}, "octal");
  ExpectRefused({"--backend", "rocm"}, "auto, cpu, cuda");
  ExpectRefused({"--device", "-1"}, "--device");
  ExpectRefused({"--worker-timeout", "2"}, "--worker-timeout: Value 2 not in range 3");
  ExpectRefused({"--model-root", dir_ / "none"}, "none");
  const auto no_worker = Parse({"--state-dir", dir_ / "state", "--worker-binary", dir_ / "none"},
                               /*with_places=*/false);
  EXPECT_THAT(std::string(no_worker.status().message()), HasSubstr("no soup-worker at"));
  ExpectRefused({"--prepare-memory", "1KiB"}, "64MiB");
  ExpectRefused({"--cache-cap", "lots"}, "cache-cap");
  ExpectRefused({"--drain-seconds", "0"}, "drain-seconds");
  EXPECT_EQ(Parse({})->config.backend, "auto");
  EXPECT_EQ(Parse({"--backend", "cuda", "--device", "1"})->config.device, 1);
  EXPECT_TRUE(Parse({"--metrics-listen", "off"}).ok());
  EXPECT_TRUE(Parse({"--metrics-listen", "[::1]:0"}).ok());
}

TEST_F(ConfigTest, HelpVersionAndTokens) {
  EXPECT_EQ(Parse({"--version"})->text, "soupd 0.1.0\n");
  EXPECT_THAT(Parse({"--help"})->text, HasSubstr("--model-root"));
  const auto token = Parse({"token", "new", "alice", "--admin"}, false);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->action, CommandLine::Action::kNewToken);
  EXPECT_EQ(token->token_user, "alice");
  EXPECT_TRUE(token->token_admin);
  EXPECT_FALSE(Parse({"token"}, false).ok());
}

TEST_F(ConfigTest, OneSoupdAStateDirectory) {
  const std::string state = dir_ / "locked";
  {
    const auto first = StateLock::Take(state);
    ASSERT_TRUE(first.ok()) << first.status();
    const auto second = StateLock::Take(state);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(getpid())));
    struct stat st {};
    ASSERT_EQ(stat(state.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777, 0700u);
  }
  EXPECT_TRUE(StateLock::Take(state).ok());
}

class TokenFileTest : public ConfigTest {
 protected:
  absl::StatusOr<std::unique_ptr<TokenFile>> OpenWith(const std::string& text, int mode = 0600) {
    WriteWhole(dir_ / "tokens", text);
    EXPECT_EQ(chmod((dir_ / "tokens").c_str(), static_cast<mode_t>(mode)), 0);
    return TokenFile::Open(dir_ / "tokens");
  }
};

TEST_F(TokenFileTest, KnowsItsTokensAndNoOthers) {
  const std::string hashed = "soup_0123456789abcdef";
  const auto file =
      OpenWith("# people\nalice-token-0123456789 alice\n\nsha256:" + Sha256Hex(hashed) +
               "  ops admin # on call\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Check("alice-token-0123456789")->user, "alice");
  EXPECT_FALSE((*file)->Check("alice-token-0123456789")->admin);
  EXPECT_EQ((*file)->Check(hashed)->user, "ops");
  EXPECT_TRUE((*file)->Check(hashed)->admin);
  for (const std::string& wrong :
       {std::string(), std::string("alice-token-012345678"), "sha256:" + Sha256Hex(hashed),
        Sha256Hex(hashed), std::string("alice-token-0123456789 ")}) {
    EXPECT_FALSE((*file)->Check(wrong).has_value()) << wrong;
  }
}

TEST_F(TokenFileTest, IsReadAgainWhenItChangesAndABrokenOneChangesNothing) {
  const auto file = OpenWith("token-number-one-x alice\n");
  ASSERT_TRUE(file.ok());
  WriteWhole(dir_ / "tokens", "token-number-two-xy bob\n");
  EXPECT_FALSE((*file)->Check("token-number-one-x").has_value());
  EXPECT_EQ((*file)->Check("token-number-two-xy")->user, "bob");
  WriteWhole(dir_ / "tokens", "broken\n");
  EXPECT_EQ((*file)->Check("token-number-two-xy")->user, "bob");
}

TEST_F(TokenFileTest, IsRefusedWithoutShowingTokens) {
  const std::string secret = "secret-token-0123456789";
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {secret + "\n", "line 1"},
           {"# x\n" + secret + " alice boss\n", "line 2"},
           {secret + " al/ice\n", "a user has"},
           {"short alice\n", "at least 16"},
           {"sha256:abc alice\n", "64 lower-case hex"},
           {secret + " a\n" + secret + " b\n", "line 2"}}) {
    const auto file = OpenWith(text);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << says;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(says));
    EXPECT_THAT(std::string(file.status().message()), ::testing::Not(HasSubstr(secret)));
  }
  EXPECT_EQ(OpenWith(secret + " alice\n", 0644).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(TokenFile::Open(dir_ / "none").status().code(), absl::StatusCode::kNotFound);
}

TEST(Auth, NewTokensAreLongAndDiffer) {
  const std::string a = NewToken();
  EXPECT_NE(a, NewToken());
  EXPECT_GE(a.size(), 48u);
  EXPECT_TRUE(TokenFile::Parse(a + " alice\n", "x").ok());
}

TEST(Auth, PeersAreFoundByDescriptorOnly) {
  PeerTable peers;
  peers.Set(12, 1000);
  EXPECT_EQ(peers.Find("fd:12"), std::optional<uid_t>(1000));
  for (const char* peer : {"fd:1", "fd:", "fd:12x", "ipv4:1.2.3.4:12", "12", "unix:"}) {
    EXPECT_EQ(peers.Find(peer), std::nullopt) << peer;
  }
  const Admins admins({1000});
  EXPECT_TRUE(PrincipalOfUid(1000, admins).admin);
  EXPECT_TRUE(PrincipalOfUid(0, admins).admin);
  EXPECT_FALSE(PrincipalOfUid(4242, admins).admin);
  EXPECT_EQ(PrincipalOfUid(4242, admins).user, "uid:4242");
}

TEST(Text, CleanTextGivesValidShortUtf8) {
  EXPECT_EQ(CleanText("plain", 100), "plain");
  EXPECT_EQ(CleanText("a\xff\xc3(b", 100),
            "a?"
            "?(b");
  EXPECT_EQ(CleanText("\xed\xa0\x80", 100), "???");  // a surrogate
  EXPECT_EQ(CleanText("\xc0\x80", 100), "??");       // overlong
  EXPECT_THAT(CleanText("äöü", 3), HasSubstr("ä … (4 more bytes)"));
  EXPECT_TRUE(IsUtf8("äöü € 𝄞"));
  EXPECT_FALSE(IsUtf8("\xf5\x80\x80\x80"));
  EXPECT_EQ(Quoted("a\"\n"), "\"a\\\"\\n\"");
}

}  // namespace
}  // namespace soup::daemon
