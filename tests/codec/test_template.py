"""Our evaluation of templates against Jinja2's own sandbox, their origins and their limits."""

# ruff: noqa: E501 - a template is one line: a break would be part of it
from __future__ import annotations

import time
import tracemalloc
from typing import Any

import jinja2
import pytest
from codec.conversations import oracle

from insitu.codec.template import Template, TypedText, UnsupportedTemplate
from insitu.codec.template_values import TemplateFault, TemplateLimitError, TemplateRaised

VALUES: dict[str, Any] = {
    "text": "  Hello, wörld! it's <b>x</b>\n\n second line  ",
    "word": "straße",
    "empty": "",
    "nothing": None,
    "yes": True,
    "three": 3,
    "half": 2.5,
    "names": ["b", "A", "c", "b"],
    "numbers": [3, 1, 2],
    "people": [
        {"name": "Ann", "age": 3, "tags": ["x", "y"]},
        {"name": "bob", "age": 1, "tags": []},
        {"name": "Cy", "age": 2, "active": True},
    ],
    "schema": {"b": {"type": "string", "items": [1, None, 2.5]}, "a": 'q"uote', "é": "\u2028<"},
}

TEMPLATES = [
    # Output of every kind of value, white space control, comments.
    "{{ text }}|{{ three }}|{{ half }}|{{ yes }}|{{ nothing }}|{{ missing }}|{{ names }}|{{ schema }}",
    "a\n  {% if yes %}\n  b\n  {% endif %}\n{#- c -#}  d  {{- ' e ' -}}  f\n",
    "{% raw %}{{ x }}{% endraw %}{{ 'tail\n' }}\n",
    "{{ 1e3 }}{{ 'a' 'b' }}",
    # Strings.
    "{{ text | trim }}|{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip('. \n') }}",
    "{{ text.split() }}|{{ text.split('l') }}|{{ text.split('l', 1)[-1] }}|{{ text.rsplit('l', 1) }}",
    "{{ text.splitlines() }}|{{ text.partition(',') | list }}|{{ text.split('\n')[0] }}",
    "{{ text.replace('l', 'LL') }}|{{ text | replace('l', '', 1) }}|{{ text.replace('', '-') }}",
    "{{ word | upper }}|{{ word.upper() }}|{{ text | title }}|{{ text.title() }}|{{ word | capitalize }}",
    "{{ text | lower }}|{{ text.startswith('  H') }}|{{ text.endswith(('x', '  ')) }}|{{ text.find('w') }}",
    "{{ text | length }}|{{ text[2:7] }}|{{ text[::-1] }}|{{ text[-3] }}|{{ text[3] }}|{{ text[99] }}",
    "{{ text | indent }}|{{ text | indent(2, true) }}|{{ text | indent(1, true, true) }}",
    "{{ 'a' ~ three ~ nothing ~ missing ~ half }}|{{ 'a' + 'b' }}|{{ 'ab' * 3 }}",
    "{{ '%s is %d, %.2f %5s%%' % (word, three, half, 'x') }}|{{ '%s!' | format(word) }}",
    "{{ '{} {name} {}{{}}'.format(word, three, name='n') }}|{{ '{1}{0}'.format(word, three) }}",
    "{{ word.removeprefix('str') }}|{{ word.removesuffix('ße') }}|{{ '7'.zfill(3) }}|{{ '12'.isdigit() }}",
    "{{ ', '.join(names) }}|{{ names | join }}|{{ names | join('-') }}|{{ people | join(',', attribute='name') }}",
    # Numbers and conditions.
    "{{ 7 // 2 }}|{{ 7 % 4 }}|{{ 7 / 2 }}|{{ 2 ** 5 }}|{{ -three + 1 }}|{{ +half }}|{{ 3 * 2 - 1 }}",
    "{{ 1 < 2 < 3 }}|{{ 1 < 3 < 2 }}|{{ 'a' < 'b' }}|{{ three == 3.0 }}|{{ 'x' != 3 }}|{{ not empty }}",
    "{{ empty or 'x' }}|{{ yes and names }}|{{ 'y' if missing else 'n' }}|[{{ 'y' if false }}]",
    "{{ 'b' in names }}|{{ 'z' not in names }}|{{ 'ell' in text }}|{{ 'a' in schema }}|{{ 1 in missing }}",
    "{{ '12' | int }}|{{ 'x' | int(7) }}|{{ '2.7' | int }}|{{ '2.5' | float }}|{{ 2.567 | round(1) }}|{{ -3 | abs }}",
    # Tests.
    "{{ missing is defined }}{{ missing is undefined }}{{ nothing is none }}{{ nothing is not none }}",
    "{{ text is string }}{{ names is string }}{{ schema is mapping }}{{ names is iterable }}{{ names is sequence }}",
    "{{ three is number }}{{ half is integer }}{{ half is float }}{{ yes is boolean }}{{ yes is true }}{{ yes is false }}",
    "{{ three is odd }}{{ 4 is even }}{{ 6 is divisibleby 3 }}{{ three is eq 3 }}{{ three is gt(2) }}{{ 'a' is in names }}",
    "{{ 'ab' is lower }}{{ 'AB' is upper }}{{ nothing is sameas none }}{{ text is iterable }}",
    # Lists and mappings.
    "{{ names | first }}|{{ names | last }}|{{ names[0] }}|{{ names[-1] }}|{{ names[1:] }}|{{ names | reverse | list }}",
    "{{ names | sort }}|{{ names | sort(true) }}|{{ names | sort(case_sensitive=true) }}|{{ names | unique | list }}",
    "{{ numbers | sum }}|{{ numbers | max }}|{{ numbers | min }}|{{ people | sum(attribute='age') }}|{{ numbers + [4] }}",
    "{{ people | map(attribute='name') | list }}|{{ names | map('upper') | join }}|{{ people | length }}",
    "{{ people | selectattr('age', 'gt', 1) | map(attribute='name') | list }}",
    "{{ people | rejectattr('active') | list | length }}|{{ people | selectattr('active', 'defined') | list | count }}",
    "{{ people | selectattr('name', 'equalto', 'bob') | first }}|{{ numbers | select('odd') | list }}",
    "{{ numbers | reject('eq', 1) | list }}|{{ people | sort(attribute='age') | map(attribute='name') | list }}",
    "{{ people[0].name }}|{{ people[0]['name'] }}|{{ people[0].get('zip', 'no') }}|{{ people[0].zip is defined }}",
    "{% for k, v in schema.items() %}{{ k }}={{ v }};{% endfor %}{{ schema.keys() | list }}{{ schema.b.type }}",
    "{% for k, v in schema | dictsort %}{{ k }},{% endfor %}{{ schema | items | list | length }}{{ schema | list }}",
    "{{ {'a': 1, 'b': [names, {'c': none}]} }}|{{ dict(x=1).x }}|{{ (1, 2)[1] }}|{{ [1, [2]] == [1, [2]] }}",
    "{{ names.index('c') }}|{{ names.count('b') }}|{{ schema.values() | list | length }}",
    # JSON.
    "{{ schema | tojson }}|{{ text | tojson }}|{{ names | tojson }}|{{ nothing | tojson }}|{{ half | tojson }}",
    "{{ schema | tojson(indent=2) }}|{{ [] | tojson(indent=2) }}|{{ {} | tojson }}|{{ schema | tojson(sort_keys=true) }}",
    "{{ schema | tojson(ensure_ascii=true) }}|{{ names | tojson(separators=(',', ':')) }}|{{ {'a': {'b': yes}} | tojson(indent=4) }}",
    # Defaults.
    "{{ missing | default('d') }}|{{ empty | default('d', true) }}|{{ empty | d('d') }}|{{ missing | length }}|{{ missing | upper }}|{{ missing | list }}",
    # Loops.
    "{% for n in names %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.length }};{% endfor %}",
    "{% for n in names %}{{ loop.previtem }}<{{ n }}>{{ loop.nextitem }}{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% for n in names if n != 'A' %}{{ loop.index }}{{ n }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for n in [] %}x{% else %}none{% endfor %}{% for n in missing %}x{% endfor %}{% for c in 'ab' %}{{ c }},{% endfor %}",
    "{% for n in range(10) %}{% if n == 2 %}{% continue %}{% endif %}{% if n == 5 %}{% break %}{% endif %}{{ n }}{% endfor %}",
    "{% for a in numbers %}{% for b in range(a) %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for n in numbers %}{% if loop.changed(n > 1) %}c{% endif %}{% endfor %}{{ range(1, 10, 3) | list }}",
    # Names.
    "{% set x = 1 %}{% for n in numbers %}{% set x = x + n %}{{ x }},{% endfor %}{{ x }}",
    "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}{% set a, b = (1, 2) %}{{ a }}{{ b }}",
    "{% for n in numbers %}{% if loop.first %}{% set y = 'f' %}{% endif %}[{{ y }}]{% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for n in numbers %}{% set ns.n = ns.n + n %}{% set ns.s = ns.s ~ n %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.t is defined }}",
    "{% set b %}x{{ three }}\n{% endset %}[{{ b }}]{% set c | upper | trim %} abc {% endset %}[{{ c }}]",
    "{% with a = 1, b = three %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}{% filter upper | replace('B', '-') %}ab{{ word }}{% endfilter %}",
    "{% macro m(a, b='d', c=a) %}<{{ a }}{{ b }}{{ c }}{{ three }}>{% endmacro %}{{ m('x') }}{{ m('x', c=1) }}{{ m(a='q', b='r') | upper }}{{ m() }}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% if not missing %}a{% elif yes %}b{% else %}c{% endif %}{% if empty %}a{% elif three %}b{% endif %}",
]  # fmt: skip


def render(source: str, **values: Any) -> TypedText:
    """The caller's values through our evaluation."""
    return Template(source).render(values, {})


@pytest.mark.parametrize("source", TEMPLATES)
def test_text_is_what_jinja_renders(source: str) -> None:
    values = {"messages": [], "tools": None, "documents": None, **VALUES}
    assert render(source, **values).text == oracle(source, **VALUES)


@pytest.mark.parametrize(
    ("source", "pieces"),
    [
        ("<{{ c }}>", [("<", True), ("C c", False), (">", True)]),
        ("{{ '<' ~ c + '>' }}", [("<", True), ("C c", False), (">", True)]),
        ("{{ (' a' ~ c ~ 'b ') | trim }}", [("a", True), ("C c", False), ("b", True)]),
        ("{{ ('x' ~ c)[::-1] }}", [("c C", False), ("x", True)]),
        ("{{ ('x' ~ c) | upper }}", [("X", True), ("C C", False)]),
        ("{{ ('ß' ~ c) | upper }}", [("SSC C", False)]),
        ("{{ 'ß' | upper }}", [("SS", True)]),
        ("{{ c.split(' ')[1] ~ 'x y'.split()[0] }}", [("c", False), ("x", True)]),
        ("{{ 'a-b'.replace('-', c) }}", [("a", True), ("C c", False), ("b", True)]),
        ("{{ c.replace(' ', '-') }}", [("C", False), ("-", True), ("c", False)]),
        ("{{ [c, 't'] | join(', ') }}", [("C c", False), (", t", True)]),
        ("{{ '%s|' % c }}", [("C c", False), ("|", True)]),
        ("{{ '{}|'.format(c) }}", [("C c", False), ("|", True)]),
        ("{{ '%5s|' % 'x' }}", [("    x", False), ("|", True)]),
        ("{{ c | tojson }}", [('"C c"', False)]),
        ("{{ {'k': c} | tojson }}", [('{"k": ', True), ('"C c"', False), ("}", True)]),
        ("{{ {'k': 't'} | tojson }}", [('{"k": "t"}', True)]),
        ("{{ r | tojson }}", [('{"k": [1, "v"]}', False)]),
        ("{{ [1, 't'] | tojson }}", [("[", True), ("1", False), (', "t"]', True)]),
        ("{{ {c: 't'} | tojson }}", [('{"C c": ', False), ('"t"', True), ("}", False)]),
        ("{% for k, v in r.items() %}{{ k }}={% endfor %}", [("k", False), ("=", True)]),
        ("{% for k in r %}{{ k }}{% endfor %}", [("k", False)]),
        ("{{ 3 }}{{ none }}{{ ['t'] }}", [("3None['t']", False)]),
        ("{% set s %}a{{ c }}{% endset %}{{ s }}", [("a", True), ("C c", False)]),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(c) }}", [("[", True), ("C c", False), ("]", True)]),
        ("{{ c if c == 'C c' else 't' }}", [("C c", False)]),
        ("{{ ('a\n' ~ c) | indent(1) }}", [("a\n ", True), ("C c", False)]),
        ("{{ bos }}", [("<s>", True)]),
    ],
)  # fmt: skip
def test_origins_of_characters(source: str, pieces: list[tuple[str, bool]]) -> None:
    typed = Template(source).render({"c": "C c", "r": {"k": [1, "v"]}}, {"bos": "<s>"})
    assert list(typed.pieces) == pieces


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{% include 'x' %}", "Include"),
        ("{% import 'x' as y %}", "Import"),
        ("{% extends 'x' %}", "Extends"),
        ("{% block b %}{% endblock %}", "Block"),
        ("{% call m() %}{% endcall %}", "CallBlock"),
        ("{{ x | pprint }}", "'pprint'"),
        ("{{ x | attr('y') }}", "'attr'"),
        ("{{ x is escaped }}", "'escaped'"),
        ("{{ x.__class__ }}", "'__class__'"),
        ("{{ x._y }}", "'_y'"),
        ("{{ f(*args) }}", "unpacked"),
        ("{% for x in y recursive %}{% endfor %}", "recursive"),
        ("{% if %}", "line 1"),
        ("{{ x", "line 1"),
        ("{% nope %}", "nope"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "nested"),
    ],
)
def test_what_is_not_implemented_is_refused_when_read(source: str, name: str) -> None:
    with pytest.raises(UnsupportedTemplate, match=name):
        Template(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ missing.x }}", "{{ missing() }}", "{{ missing + 'a' }}", "{{ text + 1 }}", "{{ none.x() }}",
        "{{ text.encode() }}", "{{ text.format_map({}) }}", "{{ text['__class__'].x }}",
        "{{ people.append(1) }}", "{{ schema.pop('a') }}", "{{ schema.update({}) }}",
        "{{ range }}", "{{ range('a') }}", "{{ 1 / 0 }}", "{{ people | sort }}", "{{ 1 < 'a' }}",
        "{{ '%q' % 1 }}", "{{ '%s' % () }}", "{{ '%(a)s' % {'a': 1} }}", "{{ '{0.x}'.format(1) }}",
        "{{ '{:>9}'.format(1) }}", "{% for a, b in numbers %}{% endfor %}", "{{ 3 | length }}",
        "{{ names | map('nope') | list }}", "{{ text.split('') }}", "{% set text.x = 1 %}",
        "{{ text | trim(1, 2, 3) }}", "{{ none | tojson(indent='x') }}", "{{ missing | tojson }}",
        "{{ 'a' in 3 }}", "{{ lipsum() }}", "{{ cycler('a') }}", "{{ text[::0] }}", "{{ 5 in text }}",
    ],
)  # fmt: skip
def test_faults_are_named_errors(source: str) -> None:
    with pytest.raises((TemplateFault, UnsupportedTemplate)):
        render(source, **VALUES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ range(10 ** 12) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 'a' * 15000000 * 1000 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%.999d' % 1 }}",
        "{{ 'a' | indent(10 ** 9) }}",
        "{{ 'a'.zfill(10 ** 9) }}",
        "{{ [] | tojson(indent=10 ** 9) }}",
        "{{ 10 ** 10 ** 10 }}",
        "{% set n = namespace(x=3) %}{% for i in range(999) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(999) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(99) %}{% set n.x = [n.x, n.x] | join(n.x) %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(30) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for i in range(99999) %}{{ big | upper | lower | title }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'q' in big }}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big.split('a') %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big.strip() == big[1:] %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = numbers | sort | unique | list | tojson %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big.rfind('aaab') + big.count('aab') %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big.isalpha() ~ (big is lower) %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big.startswith(big) and big.endswith('b') %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = '%s' | format(big) %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big | int %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = big < big ~ 'a' %}{% endfor %}",
        "{% for i in range(99999) %}{% set x = {big: 1} %}{% endfor %}",
        "{{ " + "+".join(["1"] * 5000) + " }}",
    ],
)  # fmt: skip
def test_hostile_templates_end_within_bounds(source: str) -> None:
    start_s = time.thread_time()  # of the processor: the machine may be doing something else
    with pytest.raises((TemplateLimitError, UnsupportedTemplate)):
        render(source, big="a" * 200_000, numbers=list(range(100)))
    assert time.thread_time() - start_s < 3


BIG = "{% set b = ' ' ~ 'x' * 15000000 %}"
MANY = "{% set n = namespace(l=[b]) %}{% for i in range(14) %}{% set n.l = n.l + n.l %}{% endfor %}"
MIXED = "{% set a = ('x' * 50000).replace('x', 'y' ~ big[:10]) * 25 %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(100000) | map(attribute='.' * 1000000) | list }}",
        "{{ range(100000) | selectattr('.' * 1000000) | list }}",
        *(f"{BIG}{MANY}{{{{ n.l | map('{name}') | list }}}}" for name in ("trim", "reverse", "int")),
        *(f"{BIG}{MANY}{{{{ n.l | {name} }}}}" for name in ("select('upper') | list", "sort", "max")),
        f"{BIG}{MANY}{{{{ n.l | unique | list }}}}",
        f"{BIG}{{% set f = b.strip %}}{{% for i in range(90000) %}}{{% set x = f() %}}{{% endfor %}}",
        f"{BIG}{{% set f = b.isalpha %}}{{% for i in range(90000) %}}{{% set x = f() %}}{{% endfor %}}",
        "{{ '%200d' * 800000 % range(800000) }}",
        "{{ ('%%' * 7000000) % [] }}",
        "{{ ('{0}' * 5000000).format('') }}",
        "{{ ('{{' * 7000000).format() }}",
        "{{ '\n' * 3000000 }}{{ ('\n' * 3000000).splitlines() }}",
        "{{ ('a ' * 2500000) | title }}",
        "{{ ('<' * 3000000) | safe + '<' * 3000000 }}",
        "{{ range(20000) | list | tojson(separators=['x' * 100000, ':']) }}",
        "{{ dict(a=1, b=2) | tojson(separators=[',', 'x' * 15000000]) }}",
        MIXED + "{{ a }}",
        MIXED + "{{ a[:2000000] | tojson }}",
        "{{ ['\U000e0001' * 15000000] }}",
        "{% set n = namespace(l=[]) %}{% for i in range(9) %}"
        "{% set n.l = n.l + ['x' * 15000000] %}{% endfor %}",
    ],
)  # fmt: skip
def test_hostile_templates_take_little_time_and_memory(source: str) -> None:
    tracemalloc.start()
    start_s = time.thread_time()
    try:
        with pytest.raises(TemplateLimitError):
            render(source, big="a" * 200_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.thread_time() - start_s < 6
    assert peak_bytes < 300 << 20


def test_values_nested_too_deep_are_refused() -> None:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    with pytest.raises(TemplateLimitError, match="nested"):
        render("x", value=value)


def test_raise_exception_carries_its_text() -> None:
    with pytest.raises(TemplateRaised, match=r"^no C c$"):
        render("{{ raise_exception('no ' ~ c) }}", c="C c")
    with pytest.raises(jinja2.exceptions.TemplateError, match=r"^no C c$"):
        oracle("{{ raise_exception('no ' ~ c) }}", c="C c")


def test_the_date_is_given_or_undefined() -> None:
    source = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'none' }}"
    assert Template(source).render({}, {}).text == "none"
    assert Template(source).render({}, {}, "2026-01-31").text == "31 Jan 2026"
    with pytest.raises(TemplateFault):
        Template("{{ strftime_now('%99999999d') }}").render({}, {}, "2026-01-31")


def test_generation_tags_are_only_their_body() -> None:
    assert render("a{% generation %}b{{ c }}{% endgeneration %}d", c="C").text == "abCd"


@pytest.mark.parametrize(
    "source",
    [
        "{{ range(-9223372036854775807, 9223372036854775807) }}",
        "{{ '%d' % inf }}",
        "{{ '%f' % big }}",
        "{{ big | round }}",
        "{{ 'abc'.split('b', big) }}",
        "{{ 'abc'.zfill(-big) }}",
        "{{ 'a' | indent(-big) }}",
        "{% break %}",
        "{% continue %}",
        "{% macro m() %}{% break %}{% endmacro %}{{ m() }}",
    ],
)
def test_numbers_and_jumps_beyond_all_bounds_are_faults(source: str) -> None:
    with pytest.raises(TemplateFault):
        render(source, big=10**4000, inf=float("inf"))


def test_a_number_of_thousands_of_digits_is_no_template() -> None:
    with pytest.raises(UnsupportedTemplate, match="no Jinja"):
        Template("{{ " + "9" * 5000 + " }}")
