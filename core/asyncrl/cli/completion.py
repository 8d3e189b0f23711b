"""`asyncrl completion SHELL`: a script that makes a shell's tab key complete what is written after `asyncrl`."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.cli.complete import SHELLS
from asyncrl.cli.main import Parser

DESCRIPTION = """Prints a script for a shell. It completes commands, options, slots, the names of installed plugins and files; not the
options of plugins, which are not known without importing them."""
EPILOG = """to have it in every new shell:
  bash  add to ~/.bashrc: eval "$(asyncrl completion bash)"
  zsh   add to ~/.zshrc after compinit: eval "$(asyncrl completion zsh)"
  fish  asyncrl completion fish > ~/.config/fish/completions/asyncrl.fish
"""

SCRIPTS = {
    "bash": """\
_asyncrl() {
    local line=${COMP_LINE:0:COMP_POINT} words=() word before candidate
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]}-1]}
    local breaks=${COMP_WORDBREAKS//[^=:]/}  # to bash, a word begins after these
    [[ -n $breaks ]] && before=${word%"${word##*[$breaks]}"}
    COMPREPLY=()
    while IFS= read -r candidate; do
        COMPREPLY+=("${candidate#"$before"}")
    done < <("${words[0]}" complete "${words[@]:1}" 2> /dev/null)
}
complete -o default -F _asyncrl asyncrl
""",
    "zsh": """\
_asyncrl() {
    local answer
    answer=$("${words[1]}" complete "${(@Q)words[2,CURRENT]}" 2> /dev/null)
    if [[ -n $answer ]]; then
        compadd -- "${(@f)answer}"
    else
        _files
    fi
}
compdef _asyncrl asyncrl
""",
    "fish": """\
function __asyncrl_complete
    set -l before (commandline --tokenize --current-process --cut-at-cursor)
    set -l word (commandline --current-token --cut-at-cursor)
    set -l answer ($before[1] complete $before[2..-1] "$word" 2> /dev/null)
    if test (count $answer) -gt 0
        printf '%s\\n' $answer
    else
        __fish_complete_path "$word"
    end
end
complete --command asyncrl --no-files --arguments '(__asyncrl_complete)'
""",
}


def run(arguments: Sequence[str]) -> int:
    """Print the script. Returns 0."""
    import argparse

    parser = Parser(
        prog="asyncrl completion",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    print(SCRIPTS[parser.parse_args(arguments).shell], end="")
    return 0
