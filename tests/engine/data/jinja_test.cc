// Fixed outputs of the template interpreter; compare_jinja.py holds it against jinja2 at large.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/data/jinja/python_format.h"
#include "engine/data/jinja/template.h"
#include "engine/data/json_value.h"

namespace soup::engine::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kVariables[] =
    R"({"messages":[{"role":"user","content":" Hi "},{"role":"assistant","content":"Yo"}],
"bos_token":"<s>","n":5,"l":[3,1,2],"d":{"b":1,"a":"x"},"no":null,"u":"naïve 🙂"})";

// The rendering, or the error's message.
std::string Render(absl::string_view source, RenderOptions options = {}) {
  const auto variables = ParseJsonValue(kVariables);
  EXPECT_TRUE(variables.ok()) << variables.status();
  const auto made = Template::Parse(source, "t");
  if (!made.ok()) return std::string(made.status().message());
  const auto rendering = (*made)->Render(variables->AsDict(), options);
  return rendering.ok() ? rendering->text : std::string(rendering.status().message());
}

TEST(JinjaTest, WhiteSpaceIsThatOfTrimAndLstripBlocks) {
  EXPECT_EQ(Render("a\n  {% if true %}\n  b\n  {% endif %}\n  c\n"), "a\n  b\n  c");
  EXPECT_EQ(Render("a {%- if true -%} \n b {%- endif +%}\nc"), "ab\nc");
  EXPECT_EQ(Render("a\n{#- x -#}\n b  {{- n -}}\n c"), "ab5c");
  EXPECT_EQ(Render("  {%+ if true %}x{% endif %}"), "  x");
  EXPECT_EQ(Render("{% raw %}{{ n }}{% endraw %}"), "{{ n }}");
  EXPECT_EQ(Render("x\r\ny\n\n"), "x\ny\n");
}

TEST(JinjaTest, StatementsAndScopes) {
  EXPECT_EQ(
      Render("{% for m in messages %}{{ loop.index }}{{ m.role }}{{ ',' if not loop.last }}{% "
             "endfor %}"),
      "1user,2assistant");
  EXPECT_EQ(Render("{% set x = 1 %}{% for i in l %}{% set x = x + i %}{% endfor %}{{ x }}"), "1");
  EXPECT_EQ(
      Render("{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor "
             "%}{{ ns.x }}"),
      "7");
  EXPECT_EQ(
      Render("{% macro m(a, b='z') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(b=2, a=3) }}"),
      "[1z][32]");
  EXPECT_EQ(Render("{% set x %}a{{ n }}{% endset %}{{ x | upper }}"), "A5");
  EXPECT_EQ(Render("{% for i in l if i > 1 %}{{ i }}{% else %}-{% endfor %}"), "32");
  EXPECT_EQ(Render("{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}"),
            "3");
}

TEST(JinjaTest, ValuesAreWrittenAsPythonWritesThem) {
  EXPECT_EQ(Render("{{ none }} {{ true }} {{ [1, 'a', 1.5, none] }} {{ d }} {{ (1,) }}"),
            "None True [1, 'a', 1.5, None] {'b': 1, 'a': 'x'} (1,)");
  EXPECT_EQ(Render("{{ d | tojson }} {{ u | tojson }} {{ l | tojson(indent=2) }}"),
            "{\"b\": 1, \"a\": \"x\"} \"naïve 🙂\" [\n  3,\n  1,\n  2\n]");
  EXPECT_EQ(FloatText(1e16), "1e+16");
  EXPECT_EQ(FloatText(123456.0), "123456.0");
  EXPECT_EQ(FloatText(0.0001), "0.0001");
  EXPECT_EQ(FloatText(0.00001), "1e-05");
  EXPECT_EQ(FloatText(-0.1), "-0.1");
}

TEST(JinjaTest, ExpressionsFiltersTestsAndMethods) {
  EXPECT_EQ(Render("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1 < 2 < 3 }}"),
            "-4 2 3.5 8 True");
  EXPECT_EQ(Render("{{ u[-1] }}{{ u[:3] }}{{ l[::-1] }}{{ u | length }}"), "🙂naï[2, 1, 3]7");
  EXPECT_EQ(Render("{{ messages | selectattr('role', 'eq', 'user') | map(attribute='content') | "
                   "first | trim }}"),
            "Hi");
  EXPECT_EQ(
      Render("{{ zz is defined }}{{ no is none }}{{ d is mapping }}{{ l | sort | join('-') }}"),
      "FalseTrueTrue1-2-3");
  EXPECT_EQ(Render("{{ 'a b'.split(' ')[1] }}{{ ' x '.strip() }}{{ 'abc'.startswith('ab') }}"),
            "bxTrue");
  EXPECT_EQ(Render("{{ zz }}{{ zz or 'q' }}{{ no | default('d') }}{{ zz | default('d') }}"),
            "qNoned");
}

TEST(JinjaTest, ErrorsNameLineAndColumn) {
  EXPECT_EQ(Render("a\n  {{ n | nope }}"), "t line 2 column 10: filter 'nope' is not supported");
  EXPECT_EQ(Render("{{ n is odder }}"), "t line 1 column 9: test 'odder' is not supported");
  EXPECT_EQ(Render("{% block x %}"), "t line 1 column 4: statement 'block' is not supported");
  EXPECT_EQ(Render("é{{ zz.x }}"), "t line 1 column 7: 'zz' is undefined");
  EXPECT_EQ(Render("{{ raise_exception('no') }}"),
            "t line 1 column 19: the template refuses it: no");
  EXPECT_EQ(Render("{% if n %}x"),
            "t line 1 column 12: unexpected the end of the template, expected "
            "'{% endif %}'");
  EXPECT_THAT(Render("{{ l.append(1) }}"), HasSubstr("may not"));
  EXPECT_THAT(Render("{{ d.items }}"), HasSubstr("is a method of an object"));
  EXPECT_THAT(Render("{{ ''.encode() }}"), HasSubstr("method 'encode' of a string"));
  EXPECT_THAT(Render("{{ 9223372036854775807 + 1 }}"), HasSubstr("beyond 64 bits"));
  EXPECT_THAT(Render("{{ l | tojson(4) }}"), HasSubstr("named arguments only"));
}

TEST(JinjaTest, CallFilterAndRecursiveBlocks) {
  EXPECT_EQ(Render("{% macro m(a) %}<{{ caller(a) }}|{{ varargs }}|{{ kwargs }}>{% endmacro %}{% "
                   "call(x) m(1, 2, k=3) "
                   "%}[{{ x }}]{% endcall %}"),
            "<[1]|(2,)|{'k': 3}>");
  EXPECT_EQ(Render("{% filter upper | trim %} a{{ n }}b {% endfilter %}"), "A5B");
  EXPECT_EQ(Render("{% set x | upper %}a{% endset %}{{ x }}"), "A");
  // The condition sees what the body has done, unless something asks how many are left.
  const std::string some =
      "{% set n = namespace(x=0) %}{% for i in range(5) if n.x < 2 %}{% set "
      "n.x = n.x + 1 %}";
  EXPECT_EQ(Render(some + "{{ i }}{% endfor %}"), "01");
  EXPECT_EQ(Render(some + "{{ i }}{{ loop.last }},{% endfor %}"), "0False,1True,");
  EXPECT_EQ(Render(some + "{{ loop.length }}{{ i }},{% else %}none{% endfor %}"),
            "50,51,52,53,54,");
  EXPECT_EQ(Render("{% for i in [1, 2] if i > 2 %}{{ i }}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(Render("{% for i in [1, [2, [3]]] recursive %}{{ loop.depth }}{% if i is iterable "
                   "%}({{ loop(i) }}){% else "
                   "%}{{ i }}{% endif %}{% endfor %}"),
            "111(222(33))");
  EXPECT_EQ(Render("{% macro m(a, b, c=9) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*[1, 2], "
                   "**{'c': 3}) }}"),
            "123");
  EXPECT_EQ(Render("{% for g in messages | groupby('role') %}{{ g.grouper }}{{ g.list | length }} "
                   "{% endfor %}"),
            "assistant1 user1 ");
  EXPECT_EQ(
      Render("{{ '%s=%03d|%-4s|%.2f' % ('a', 7, 'b', 1.5) }} {{ '{0}-{k:>3}'.format(1, k='z') }}"),
      "a=007|b   |1.50 1-  z");
  EXPECT_THAT(Render("{% for i in l %}{% set x %}{% break %}{% endset %}{% endfor %}"),
              HasSubstr("is not supported"));
  EXPECT_THAT(Render("{% for i in l %}{{ loop(l) }}{% endfor %}"), HasSubstr("recursive loop"));
  EXPECT_THAT(Render("{% for i in l recursive %}{{ loop(l) }}{% endfor %}"), HasSubstr("too deep"));
}

TEST(JinjaTest, GenerationBlocksAreMeasured) {
  const auto made = Template::Parse(
      "é{% generation %}ab{% endgeneration %}c{% generation %}{% "
      "endgeneration %}",
      "t");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE((*made)->has_generation_blocks());
  const auto rendering = (*made)->Render({}, {});
  ASSERT_TRUE(rendering.ok()) << rendering.status();
  EXPECT_EQ(rendering->text, "éabc");
  EXPECT_THAT(rendering->generation, ElementsAre(Pair(2, 4), Pair(5, 5)));
}

TEST(JinjaTest, StepsBytesAndDepthAreBounded) {
  RenderOptions small;
  small.max_steps = 10000;
  small.max_made_bytes = 1 << 20;
  small.max_output_bytes = 1000;
  const std::string loop = "{% for i in range(1000) %}";
  EXPECT_THAT(Render(loop + loop + "{% endfor %}{% endfor %}", small), HasSubstr("10000 steps"));
  EXPECT_THAT(Render("{{ 'x' * 2000000000 }}", small), HasSubstr("1048576 bytes"));
  EXPECT_THAT(Render("{{ 'x' * 2000 }}", small), HasSubstr("writes more than 1000 bytes"));
  EXPECT_THAT(Render("{{ [0] * 2000000000 }}", small), HasSubstr("the template"));
  EXPECT_THAT(Render("{{ range(1000000) }}"), HasSubstr("'range' over 100000"));
  EXPECT_THAT(Render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("too deep"));
  // Lists within lists, doubled again and again: as a text they would fill the world.
  EXPECT_THAT(Render("{% set ns = namespace(x='ab') %}{% for i in range(50) %}{% set ns.x = [ns.x, "
                     "ns.x] %}{% endfor %}{{ ns.x }}",
                     small),
              HasSubstr("the template"));
  EXPECT_THAT(Render("{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = [ns.x] "
                     "%}{% endfor %}"),
              HasSubstr("nested deeper"));
  const auto many = [](const std::string& what) {
    std::string out;
    for (int i = 0; i < 20000; ++i) out += what;
    return out;
  };
  for (const std::string& source :
       {"{{ " + many("(") + " }}", "{{ " + many("[") + " }}", "{{ " + many("not ") + "n }}",
        "{{ " + many("-") + "n }}", "{{ n" + many(" + n") + " }}", "{{ n" + many(".x") + " }}",
        "{{ n" + many("|string") + " }}", "{{ n" + many(" if n else n") + " }}",
        "{{ n" + many(" or n") + " }}", "{{ n" + many("**n") + " }}", many("{% if n %}"),
        many("{% for x in l %}"), "{{ {'a': " + many("{'a': ") + " }}"}) {
    EXPECT_TRUE(absl::StartsWith(Render(source), "t line 1 column")) << source.substr(0, 40);
  }
}

TEST(JinjaTest, TheTimeIsTheCallers) {
  RenderOptions options;
  options.now_unix_seconds = 1'700'000'000;
  EXPECT_EQ(Render("{{ strftime_now('%Y-%m') }}", options), "2023-11");
  EXPECT_EQ(Render("[{{ strftime_now('') }}]", options), "[]");
}

// Every prefix of a template and every byte of it replaced: a text or an error, no crash.
TEST(JinjaTest, DamagedTemplatesNeverCrash) {
  const std::string good =
      "{{- bos_token }}\n{%- for m in messages if m.role != 'x' %}\n  {%- set c = m['content'] | "
      "trim "
      "%}\n{# c #}{% raw %}r{% endraw %}{% macro f(a, b=1) %}{{ a ~ b }}{% endmacro %}{{ "
      "f(c[0:-1], "
      "b={'k': [1.5, (2, 3)]}.k) }}{% if loop.last and not (n is odd) %}{{ l | map('string') | "
      "join(',') }}{% elif n > 3 %}{% generation %}{{ '\\u00e9\\n' }}{% endgeneration %}{% endif "
      "%}{% "
      "endfor %}";
  ASSERT_FALSE(absl::StartsWith(Render(good), "t "));
  RenderOptions small;
  small.max_steps = 100000;
  int rendered = 0;
  for (size_t n = 0; n < good.size(); ++n) {
    rendered += !absl::StartsWith(Render(good.substr(0, n), small), "t ");
    for (char c : {'\0', '{', '}', '%', '\'', '(', ' ', '-', '\xff'}) {
      std::string bad = good;
      bad[n] = c;
      rendered += !absl::StartsWith(Render(bad, small), "t ");
    }
  }
  EXPECT_GT(rendered, 100);
}

}  // namespace
}  // namespace soup::engine::jinja
