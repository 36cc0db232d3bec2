"""compare_jinja.py PROBE: renders templates with PyPI's jinja2, set up as Hugging Face does, and with
engine/data/jinja, and compares. Exit 77 (skipped) when jinja2 is not there. Prints the seed.

Where jinja2 raises, ours must refuse. Where only ours refuses, its message must be one of
KNOWN_REFUSALS: what is not supported is refused by name, never rendered otherwise."""
import copy, datetime, glob, json, os, random, re, subprocess, sys, warnings

warnings.simplefilter("ignore")  # of expressions that jinja2 compiles to odd Python

try:
    import jinja2
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: Python has no jinja2")
    sys.exit(77)


# {% generation %} as transformers has it: a block with a scope of its own, whose place is remembered (here by marks in
# the text).
class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    @staticmethod
    def mark(caller):
        return "\ue0f0" + caller() + "\ue0f1"


def spans_of(marked):
    text, out = b"", []
    for part in re.split("(\ue0f0|\ue0f1)", marked):
        if part == "\ue0f0":
            out.append([len(text), None])
        elif part == "\ue0f1":
            out[-1][1] = len(text)
        else:
            text += part.encode()
    return text.decode(), out


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols", Generation])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return env


MESSAGES = [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": " Grüße, \"world\" <b>& 'co'\n"},
            {"role": "assistant", "content": "Hi there!\n\nSecond line."},
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "weather", "arguments": {"city": "Ôslo", "days": 2, "x": 1.5, "y": None, "z": [True, {}]}}}]},
            {"role": "tool", "name": "weather", "content": "3 °C"},
            {"role": "assistant", "content": "<think>\ncold\n</think>\n\nCold: 3 °C."}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells\nit", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
VARIABLES = {"messages": MESSAGES, "tools": TOOLS, "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True,
             "n": 5, "f": 2.5, "big": 1e20, "small": 0.00001, "t": True, "no": None, "s": "Ab c-d  e_f ", "e": "", "u": "naïve ÀÉ ß 🙂",
             "l": [3, 1, 2], "d": {"b": 1, "a": "x", "C": [1, 2]}, "words": ["b", "A", "c", "a"], "empty": [],
             "nested": [{"k": {"v": 2}}, {"k": {"v": 1}}], "html": "<a href='x'>"}

EXPRESSIONS = r"""
n + 1; n - f; n * 2; n / 2; n // 2; n % 3; -n // 2; -n % 3; 2 ** 3; 2 ** -1; f ** 2; 7.0 // 2; -7.5 % 2; 1_000; 1e3; 1.5e-7; big; small; 0.1 + 0.2
100000000000000000.0; 123456789.123; -0.0; 1e16; 1e15; 3.0; t + 1; not t; not no; t and n; no or 'x'; e or l; n and e; t == 1; 1 == 1.0; '1' == 1
'a' < 'b'; 1 < 2 < 3; 1 < 3 < 2; l < [3, 2]; n in l; 3 in l; 3 not in l; 'b' in d; 'ab' in 'cabd'; none in [none]; 'x' ~ 1 ~ none ~ l ~ 1.0 ~ t
'a' if n > 3 else 'b'; 'a' if n > 9; 'a' if n > 9 else 'b' if n > 4 else 'c'; l[0]; l[-1]; l[9]; l[1:]; l[::-1]; l[:2]; l[-2:]; l[5:1]; s[1:4]; u[2]; u[::-1]; u[-2:]; u[1:9:2]; d['b']; d.a; d.zz; d['zz']
s.strip(); s.lstrip(); s.rstrip(); s.upper(); s.lower(); s.title(); s.capitalize(); u.upper(); u.lower(); u.title(); s.split(); s.split(' '); s.split(' ', 1); s.rsplit(' ', 1); s.split(None, 1); 'a,b,,c'.split(','); 'x'.split('x'); ''.split(); ''.split(',')
s.startswith('Ab'); s.startswith(('x', 'A')); s.endswith(' '); s.find('c'); s.find('zz'); s.rfind(' '); s.count(' '); s.replace(' ', '_'); s.replace(' ', '_', 1); 'abc'.replace('', '-'); 'aaa'.replace('a', 'bb', 2); 'xxhixx'.strip('x'); 'abcba'.lstrip('ab'); 'éàé'.strip('é')
'a\nb\r\nc\n'.splitlines(); 'a\nb\n'.splitlines(true); 'pre-x'.removeprefix('pre-'); 'x.py'.removesuffix('.py'); '-'.join(words); 'a=b=c'.partition('='); 'a=b=c'.rpartition('='); 'abc'.partition('z'); 'ab1'.isalnum(); '12'.isdigit(); 'ab'.isalpha(); '  '.isspace(); 'AB'.isupper(); 'ab'.islower(); ''.isspace()
d.get('b'); d.get('q'); d.get('q', 3); d.keys()|list; d.values()|list; d.items()|list; d|items|list; d|length; l|length; u|length; e|length; undefined_thing|length; l.index(1); l.count(2)
l|sort; l|sort(reverse=true); words|sort; words|sort(case_sensitive=true); nested|sort(attribute='k.v'); nested|map(attribute='k.v')|list; words|map('upper')|list; words|map('replace', 'a', 'z')|join; nested|map(attribute='q', default='-')|join(',')
l|join; l|join(', '); nested|join('|', attribute='k'); l|first; l|last; empty|first; l|sum; l|min; l|max; words|min; l|reverse|list; s|reverse; l|list; s|list; d|list; words|unique|list; ['a','A','b']|unique|list; d|dictsort; d|dictsort(by='key', reverse=true)
messages|selectattr('role', 'equalto', 'user')|list|length; messages|rejectattr('role', 'eq', 'user')|map(attribute='role')|join(','); messages|selectattr('tool_calls', 'defined')|list|length; messages|selectattr('content')|list|length; l|select('odd')|list; l|reject('>', 1)|list; [0,1,'',none]|select|list
s|trim; u|trim; '  x '|trim|upper; 'xx-xx'|trim('x'); n|string; f|string; t|string; no|string; l|string; d|string; '12'|int; 'x'|int; '3.7'|int; 'x'|int(9); 3.9|int; -3.9|int; t|int; '2.5'|float; n|float; 'q'|float(1.5); -n|abs; (-n)|abs; -2.5|abs; 2.5|round; 3.5|round; 2.4|round|int
no|default('x'); zz|default('x'); zz|d; e|default('x', true); no|default('x', boolean=true); s|replace('b', 'B'); 12321|replace(2, 'x'); s|title; 'hello (wORLD) a-bC'|title; 'hELLO'|capitalize; s|upper; s|lower; 'a\nb\n\nc'|indent; 'a\nb'|indent(2, true); 'a\n\nb'|indent(2, blank=true); 'a\nb'|indent('>'); html|safe
d|tojson; l|tojson; u|tojson; u|tojson(ensure_ascii=true); messages|tojson; tools|tojson(indent=2); tools|tojson(indent=4); {}|tojson(indent=2); []|tojson(indent=2); d|tojson(sort_keys=true); d|tojson(separators=(',', ':')); f|tojson; no|tojson; t|tojson; html|tojson; 'a"\\\n\t\x01\x7f/'|tojson; big|tojson
n is defined; zz is defined; zz is undefined; zz is not defined; no is none; n is none; s is string; n is number; t is number; t is integer; n is integer; f is float; t is boolean; t is true; t is false; no is false; d is mapping; l is mapping; l is iterable; s is iterable; n is iterable; d is iterable; l is sequence; d is sequence; n is sequence; zz is iterable; n is odd; n is even; 6 is divisibleby 3; 6 is divisibleby(4); n is eq 5; n is equalto 5; n is ne 5; n is gt 4; n is ge 5; n is lt 5; n is le 5; 'a' is in 'abc'; n is in [5]; no is sameas none; t is sameas true; 'ab' is lower; 'AB' is upper; range is callable; s is callable
not n is defined; n is not none; n is defined and n > 3; (n is string) == false; [1, 'a', none, 1.5, [2], (1,), (1, 2), {'k': 'v'}]; (); {'a': 1}.a; [1] + [2]; (1,) + (2,); [1] * 3; 'ab' * 2; 2 * 'ab'; 'it\'s'; "say \"hi\""; ['it\'s "x"', 'tab\t', 'é\u00a0\u200b', '\x7f', '🙂']; 'a' 'b'; '\u00e9\x41\101\n|'; 'un\known'
range(3)|list; range(1, 7, 2)|list; range(5, 0, -2)|list; range(0)|list; dict(a=1, b='x'); dict({'z': 1}, a=2); namespace(a=1).a; namespace().q; [n, f][0]; {'a': {'b': [1, {'c': 2}]}}.a.b[1].c; 'abc'[0]; 'abc'[-1]; 'abc'[7]; messages[0].role; messages[-1]['role']; messages[1:]|length; messages[0]['content'][:2]; l.0; nested[0].k.v
zz; zz ~ 'a'; zz|trim; zz|upper; zz|join; zz|list; zz == zz; zz == none; zz in [1]; 1 in zz; zz or 'dflt'; zz is none; (zz); [zz]; no.x; n.x; s.x; d.x.y; zz.x; zz[0]; zz + 1; zz(); n(); 1 + 'a'; 'a' + 1; [] < 1; none < 1; l + 'a'; 1 / 0; 1 // 0; 1 % 0; l['a']; d[1]; n[0]; no[0]; none + 1; -s; +s; +n; s - 1; none|tojson; zz|tojson; zz|int; no|int; no|length; n|length; n|join; n|first; no|list; zz|items|list
1 if; foo bar; (1; [1; {1}; {'a' 1}; 'a; 1 +; n |; n is; n..x; n[; f(a=1, 2); ~n; 1 = 2; @; n ! 3; 01; 1 in; not; a if b is string if c else d; n is zzz; n|zzz; n|trim(; 'x' is string is string
""".strip()

STATEMENTS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}\n  b\n  {% endif %}\n  c", "  {%- if true -%}  \n x \n {%- endif -%} \n y", "a {%- if true %} b{% endif %}", "a  {%+ if true %} b{% endif %}\n",
    "{% if true +%}\nx{% endif %}", "{# c #}\nx", "a {#- c -#}  \n b", "  {# c #}  x\n  {# d #}\ny", "{{ 'a' }}\n{{ 'b' }}\n", "{{- ' a' -}}  \n b", "  {{ n }}  ", "a\n\n", "a\n", "\n", "", "a\r\nb\rc", "{{ '}}' }}{{ {'a': {}} }}", "{{ '{%' }} %} }} #}", "{ {x} {", "{",
    "{% raw %}{{ x }}{% endraw %}", "{% raw %}\n {{ x }}\n{% endraw %}\ny", "  {%- raw -%} \n {% if %} {%- endraw -%}  z", "{% raw %}{% raw %}{% endraw %}", "{% rawx %}", "x{#-#}\n y", "{#-#}",
    "{% for i in l %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "{% for i in l %}{{ loop.index }}/{{ loop.length }}{{ loop.first }}{{ loop.last }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for i in empty %}x{% else %}none{% endfor %}", "{% for i in l if i > 1 %}{{ loop.index }}{{ i }}{% else %}e{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'aé🙂' %}[{{ c }}]{% endfor %}", "{% for (a, b) in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.depth }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}", "{% for i in zz %}x{% endfor %}", "{% for i in none %}x{% endfor %}", "{% for i in 5 %}x{% endfor %}", "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for i in 1, 2 %}{{ i }}{% endfor %}",
    "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for i in [1, 1, 2] %}{{ loop.changed(i) }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% break %}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}{{ ns.c }}", "{% set d.x = 1 %}", "{% set zz.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = [1] %}", "{% set x %}hi {{ n }}{% endset %}[{{ x }}]", "{% if true %}{% set x = 3 %}{% endif %}{{ x }}", "{% if false %}{% set x = 3 %}{% endif %}{{ x }}", "{% set x = 1, %}{{ x }}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% set x = 1 %}{% set x %}{{ x }}b{% endset %}{{ x }}", "{% set messages = messages[1:] %}{{ messages|length }}", "{% for m in messages %}{% set messages = [] %}{{ messages|length }}{% endfor %}{{ messages|length }}", "{% for m in l %}{{ q }}{% set q = m %}{{ q }}{% endfor %}{{ q }}",
    "{% macro m(a, b=2, c=n) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, c=3) }} {{ m(b=1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m() %}{{ x }}{% endmacro %}{% set x = 5 %}{{ m() }}", "{% macro r(k) %}{{ k }}{% if k > 0 %}{{ r(k - 1) }}{% endif %}{% endmacro %}{{ r(4) }}", "{% macro m() %}  a\n{% endmacro %}[{{ m()|trim }}][{{ m() ~ 'x' }}]",
    "{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}", "{% if n > 9 %}a{% elif n > 4 %}b{% else %}c{% endif %}", "{% if zz %}a{% else %}b{% endif %}", "{% if not zz %}a{% endif %}", "{{ raise_exception('no: ' ~ n) }}", "{% if n %}", "{% endif %}", "{% for %}", "{% set %}", "{% set x = %}", "{{ }}", "{{", "{%", "{# x", "{% if n %}{% endfor %}", "{% else %}", "{% foo %}", "{% for i in l %}{% endif %}",
    "{{ n }", "{{ (n }}", "{{ n ]}}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro %}{% endmacro %}", "{% for loop in l %}{% endfor %}", "{% set none = 1 %}", "{{ messages.append(1) }}", "{{ d.update({'a': 2}) }}", "{{ d.pop('a') }}", "{{ ''.__class__ }}", "{{ n.__class__.__mro__ }}", "{{ l.__len__() }}",
    "{%- for message in messages %}\n    {%- if message.role == 'user' %}\n        {{- 'U: ' + message.content | trim + '\\n' }}\n    {%- elif message.tool_calls is defined %}\n        {%- for c in message.tool_calls %}\n            {{- '<c>' ~ c.function.name ~ (c.function.arguments | tojson) ~ '</c>' }}\n        {%- endfor %}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- 'A:' }}\n{%- endif %}\n",
]

# Blocks that gather text, macros with all they may be given, recursion, formats.
STATEMENTS += [
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 3, 4, 5, q=6) }}{{ m(b=1, a=0, z=none) }}", "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{{ n }}{% endcall %}",
    "{% macro m() %}{{ caller(1, b=2) }}{% endmacro %}{% call(a, b=3) m() %}{{ a }}{{ b }}{% endcall %}", "{% macro m() %}{% if caller %}c{% else %}n{% endif %}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m(a) %}{{ a }}{{ caller() }}{% endmacro %}{{ m(1) }}", "{% macro o() %}{% macro i() %}{{ varargs }}{% endmacro %}{{ i(1, 2) }}{% endmacro %}{{ o(3) }}", "{% call n %}{% endcall %}", "{% call n() %}{% endcall %}",
    "{% macro m(x) %}[{{ x }}]{% endmacro %}{% for i in l %}{% call m(i) %}q{% endcall %}{% endfor %}", "{% set y = 1 %}{% macro m() %}{% set y = 2 %}{{ caller() }}{% endmacro %}{% call m() %}{{ y }}{% endcall %}",
    "{% filter upper %}a{{ s }}b{% endfilter %}", "{% filter trim | upper | replace('A', 'z') %} {{ words }} {% endfilter %}", "{% set q %}{{ s }}{% endset %}{{ q }}", "{% set q | upper | trim %} {{ s }} a {% endset %}{{ q }}", "{% filter length %}abc{% endfilter %}", "{% set q | length %}abc{% endset %}{{ q + 1 }}", "{% filter indent(2, true) %}a\nb{% endfilter %}",
    "{% for i in l %}{% filter upper %}{% if i == 1 %}a{% endif %}{{ i }}{% endfilter %}{% endfor %}", "{% for i in [1, [2, [3, 4]], 5] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}@{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{% endif %}{% endfor %}",
    "{% for i in [[1, 2], []] recursive %}{% if i is iterable %}<{{ loop(i) }}>{% else %}{{ i }}{% endif %}{% else %}none{% endfor %}", "{% for i in l recursive if i > 1 %}{{ i }}{% endfor %}", "{% for i in l if i > 1 recursive %}{{ i }}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for k, v in nested.items() recursive %}{{ k }}{% if v is mapping %}{{ loop(v.items()) }}{% endif %}{% endfor %}",
    "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*l) }}{{ m(1, *[2, 3]) }}{{ m(**{'a': 1, 'c': 2}) }}{{ m(1, *[2], **{'c': 3}) }}{{ m(*[1], b=2) }}", "{{ range(*[1, 4]) | list }}", "{{ dict(a=1, **{'b': 2}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*l, 1) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(**d, x=1) }}", "{% for i in l %}{% set x %}{% for j in l %}{% break %}{% endfor %}{{ i }}{% endset %}{{ x }}{% endfor %}",
    "{% for g in messages | groupby('role') %}{{ g.grouper }}:{{ g.list | length }};{{ g[0] }}{% endfor %}", "{% for k, v in messages | groupby('role') %}{{ k }}{{ v | map(attribute='content') | join('+') }}{% endfor %}", "{{ [{'a': 'X', 'v': 1}, {'a': 'x', 'v': 2}, {'a': 'B', 'v': 3}, {'v': 4}] | groupby('a', default='zz') | map('list') | list }}",
    "{{ [{'a': 'X'}, {'a': 'x'}, {'a': 'B'}] | groupby('a', case_sensitive=true) | list }}", "{{ [{'a': 2}, {'a': 1}, {'a': 2}] | groupby('a') | list }}", "{{ range(7) | batch(3) | list }}{{ range(7) | batch(3, 'x') | list }}{{ range(6) | batch(3, 'x') | list }}{{ [] | batch(2) | list }}", "{{ range(7) | slice(3) | list }}{{ range(7) | slice(3, 'x') | list }}{{ [] | slice(2, 0) | list }}",
]
FORMATS = ["%s", "%d", "%5d", "%-5d|", "%05d", "%+d", "% d", "%x", "%X", "%#x", "%o", "%i", "%u", "%f", "%.2f", "%8.3f", "%-8.1f|", "%08.2f", "%e", "%.1E", "%g", "%.3g", "%#.3g", "%r", "%5s", "%-5s|", "%.2s", "%05s", "%%", "%c", "%(a)s", "%(b)d", "%.3d", "%+.2e", "%", "%q", "%5", "%(a", "%s %s", "%d%%"]
BRACES = ["{}", "{0}", "{a}", "{}{}", "{1}{0}", "{0}{}", "{:>5}", "{:<5}|", "{:^5}|", "{:*^7}", "{:05}", "{:5}|", "{:d}", "{:x}", "{:#x}", "{:b}", "{:o}", "{:,}", "{:_}", "{:.2f}", "{:8.2f}", "{:+}", "{: }", "{:e}", "{:g}", "{:%}", "{:.1%}", "{!r}", "{!s:>6}", "{{}}", "{", "}", "{:s}", "{:.2}", "{:.2s}", "{0[0]}", "{0.a}", "{0[a]}", "{a.b}", "{:{}}", "{:é^5}", "{:=+5}", "{:,.1f}", "{:>{a}}", "{x}", "{:z}", "{!x}"]
VALUES = ["1", "-7", "0", "12345678", "2.5", "-0.125", "1e20", "0.1", "123456.789", "true", "none", "'ab'", "'é🙂x'", "[1, 'a']", "(1, 2)", "('a', 5)", "{'a': 1, 'b': 2}", "d", "zz", "s", "(2.5,)", "()"]
FORMAT_CASES = ["{{ %s %% %s }}" % (repr(f), v) for f in FORMATS for v in VALUES] + ["{{ %s | format(%s) }}" % (repr(f), v) for f in FORMATS for v in ["1", "'x', 2", "a='q', b=3", "2.5", ""]]
FORMAT_CASES += ["{{ %s.format(%s) }}" % (repr(f), v) for f in BRACES for v in [x for x in VALUES if x != "()"] + ["1, 2", "'x', 'y'", "a=3", "5, a=7", "d, a=nested", "l", ""]]
FORMAT_CASES += ["{{ %s | round(%s) }}" % (v, a) for v in ["2.5", "3.5", "-2.5", "0.125", "2.675", "1234.5678", "5", "true", "1e15", "0.5", "-0.4"] for a in ["", "1", "2", "0, 'ceil'", "0, 'floor'", "2, 'ceil'", "1, 'floor'", "3, method='common'", "2, 'up'"]]
FORMAT_CASES += ["{{ %s | truncate(%s) }}" % (v, a) for v in ["words", "'one two three four five'", "'é🙂 naïve café 日本語 text'", "s", "''", "n"] for a in ["9", "9, true", "9, false, '..'", "9, true, '', 0", "5, leeway=0", "3", "2", "255"]]
FORMAT_CASES += ["{{ %s | %s }}" % (v, f) for v in ["words", "'a'", "''", "'é🙂x'", "'one-two_3 four'", "n", "none", "'-42'", "'+'"] for f in ["wordcount", "center(9)", "center(4)", "center(0)", "center"]]
FORMAT_CASES += ["[{{ %s.%s }}]" % (v, m) for v in ["words", "'a'", "''", "'é🙂x'", "'-42'", "'+'"] for m in ["center(9)", "center(8, '*')", "ljust(7)", "rjust(7, 'é')", "zfill(6)", "zfill(1)", "rjust(3, 'ab')", "ljust()"]]
FORMAT_CASES += ["{{ l.copy() }}", "{{ d.copy() }}", "{{ (1,).copy() }}"]

# Templates in the manner of those that models come with.
TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "golden", "templates")
MANNERS = {os.path.basename(f)[:-6]: open(f, encoding="utf-8", newline="").read() for f in sorted(glob.glob(TEMPLATES + "/*.jinja"))}


def random_conversation(rng):
    words = ["Hi", " Hi ", "", "\n", "a\n\nb", "<think>\nx\n</think>\n\ny", "</think>", "<tool_response>z</tool_response>", "{{ n }}", "<|im_end|>", "é🙂", "'\"", "[INST]", "don't"]
    def message():
        role = rng.choice(["user", "assistant", "assistant", "tool", "system", "ipython"])
        out = {"role": role, "content": rng.choice(words)}
        if rng.random() < 0.05:
            out["content"] = rng.choice([None, [{"type": "text", "text": "x"}, {"type": "image"}], {"a": 1}])
        if role == "assistant" and rng.random() < 0.3:
            out["tool_calls"] = [{"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": rng.choice([{}, {"a": [1, 2.5, None, True], "b": {"c": "é\n"}}, '{"a": 1}'])}} for _ in range(rng.randrange(1, 3))]
        if role == "assistant" and rng.random() < 0.2:
            out["reasoning_content"] = rng.choice(words)
        return out
    if rng.random() < 0.5:
        out = [{"role": "user" if i % 2 == 0 else "assistant", "content": rng.choice(words)} for i in range(rng.randrange(1, 8))]
        return [{"role": "system", "content": rng.choice(words)}] + out if rng.random() < 0.3 else out
    return [message() for _ in range(rng.randrange(1, 7))]


def random_expression(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(["n", "f", "t", "no", "s", "e", "u", "l", "d", "words", "empty", "nested", "messages", "zz", "1", "0", "-1", "2.5", "'a'", "' x '", "true", "none", "[]", "{}", "d.a", "l[0]", "messages[0]", "messages[-1].content", "messages|length"])
    x = lambda: random_expression(rng, depth - 1)
    return rng.choice([
        lambda: "(%s %s %s)" % (x(), rng.choice("+ - * / // % ~ == != < > <= >= in and or".split() + ["not in"]), x()),
        lambda: "(not %s)" % x(), lambda: "(-%s)" % x(), lambda: "(%s if %s else %s)" % (x(), x(), x()),
        lambda: "%s[%s]" % (x() if False else "(%s)" % x(), x()), lambda: "(%s)[%s:%s]" % (x(), rng.choice(["", "1", "-1", "n"]), rng.choice(["", "2", "-1"])),
        lambda: "(%s).%s" % (x(), rng.choice(["a", "b", "role", "content", "k"])),
        lambda: "(%s)|%s" % (x(), rng.choice(["trim", "upper", "lower", "title", "capitalize", "length", "string", "list", "first", "last", "join", "join('-')", "tojson", "reverse|list", "sort", "unique|list", "int", "float", "abs", "default('q')", "default('q', true)", "sum", "min", "max", "map('string')|list", "map('upper')|join(',')", "select('string')|list", "reject('none')|list", "items|list", "replace('a', 'zz')", "indent", "dictsort", "batch(2)|list", "slice(2)|list", "groupby('role')|list", "groupby('a', default=1)|map('first')|list", "round", "round(1)", "truncate(5)", "wordcount", "center(6)", "format(1)"])),
        lambda: "(%s %% %s)" % (rng.choice(["'%s'", "'%d'", "'%5.1f|%s'", "'%(a)s'", "s"]), x()), lambda: "%s.format(%s, a=%s)" % (rng.choice(["'{}'", "'{a}-{}'", "'{0!r}'", "'{:>6}'", "'{a[0]}'"]), x(), x()),
        lambda: "((%s) is %s%s)" % (x(), rng.choice(["", "not "]), rng.choice(["defined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even", "lower", "upper", "in [1, 'a']", "eq 1", "gt 0", "divisibleby 2"])),
        lambda: "(%s).%s" % (x(), rng.choice(["strip()", "upper()", "split()", "split('a')", "startswith('a')", "endswith('x')", "replace('a', 'b')", "lower()", "get('a')", "get('q', 1)", "items()|list", "keys()|list", "find('a')", "count('a')", "title()", "splitlines()", "zfill(5)", "ljust(4, '*')", "copy()"])),
        lambda: "[%s, %s]" % (x(), x()), lambda: "{'k': %s, 'a': %s}" % (x(), x()), lambda: "(%s, %s)" % (x(), x()),
    ])()


def random_text(rng):
    pieces = ["{% if t %}", "{%- if t -%}", "{% endif %}", "{%- endif %}", "{%+ if no %}", "{% else %}", "{% for i in l %}", "{% endfor -%}", "{{ n }}", "{{- n -}}", "{{ n -}}", "{# c #}", "{#- c -#}", "\n", "  ", "\n  ", "x", " y\n", "\t", "\r\n", "{% set q = n %}", "{{ q }}", "{% raw %}", "{% endraw %}", "{", "}", "%}", "-", "é"]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 14)))


def main():
    probe = sys.argv[1]
    seed = int(os.environ.get("SOUP_TEST_SEED", "20260101"))
    count = int(os.environ.get("SOUP_FUZZ_CASES", "1500"))
    rng = random.Random(seed)
    cases = ["{{ %s }}" % e.strip() for line in EXPRESSIONS.splitlines() for e in line.split("; ")]
    cases += STATEMENTS + FORMAT_CASES
    manners = list(MANNERS.values())
    fixed = len(cases)
    cases += ["{{ %s }}" % random_expression(rng, rng.randrange(1, 5)) for _ in range(count)]
    cases += [random_text(rng) for _ in range(count)]
    jobs = [(t, VARIABLES) for t in cases]
    for t in manners:
        for first in (0, 1):
            for last in range(first + 1, len(MESSAGES) + 1):
                for prompt in (False, True):
                    for tools in (None, TOOLS):
                        v = dict(VARIABLES, messages=MESSAGES[first:last], add_generation_prompt=prompt, tools=tools)
                        jobs.append((t, v))
    for _ in range(count):
        v = dict(VARIABLES, messages=random_conversation(rng), add_generation_prompt=rng.random() < 0.5, tools=rng.choice([None, TOOLS]))
        if rng.random() < 0.3:
            v["enable_thinking"] = rng.random() < 0.5
        jobs.append((rng.choice(manners), v))
    lines = "".join(json.dumps({"template": t, "variables": v}, ensure_ascii=True) + "\n" for t, v in jobs)
    answers = subprocess.run([probe, "jinja"], input=lines, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
    assert len(answers) == len(jobs), (len(answers), len(jobs))
    env, bad, equal, both, refused = environment(), 0, 0, 0, 0
    for i, ((t, v), answer) in enumerate(zip(jobs, answers)):
        ours = json.loads(answer)
        try:
            theirs = env.from_string(t).render(**copy.deepcopy(v))  # `indent` adds to a list in place
        except RecursionError:
            theirs = None
        except Exception as e:
            theirs = None
            why = "%s: %s" % (type(e).__name__, e)
        spans = []
        if theirs is not None and "\ue0f0" in theirs:
            theirs, spans = spans_of(theirs)
        if theirs is not None and ours.get("text") == theirs and ours.get("generation") == spans:
            equal += 1
        elif theirs is None and "error" in ours:
            both += 1
        elif "error" in ours and any(r in ours["error"] for r in KNOWN_REFUSALS):
            refused += 1
        else:
            bad += 1
            if bad <= int(os.environ.get("SOUP_SHOW", "10")):
                print("DIFFERS (case %d, SOUP_TEST_SEED=%d): %r\n  jinja2: %s\n  ours:   %r" % (i, seed, t[:400], repr(theirs)[:600] if theirs is not None else "raises " + why, str(ours)[:600]))
    print("%d equal, %d refused by both, %d refused here only, %d differ; %d fixed cases, seed %d" % (equal, both, refused, bad, fixed, seed))
    sys.exit(1 if bad else 0)


# Refusals that jinja2 does not make; each is named in the message.
KNOWN_REFUSALS = ["is not supported", "is a method of", "a slice cannot take", "beyond 64 bits", "a raw block without its end"]

if __name__ == "__main__":
    main()
