"""`lbagent completion`: the script that a shell sources."""

from __future__ import annotations

import click

# bash breaks words at colons, and addresses have them: the words are read from the line, and what is before the last colon of the
# word, which bash keeps, is left out of the answers.
BASH = r"""_lbagent_completion() {
    local IFS=$' \t\n' line="${COMP_LINE:0:COMP_POINT}" words number kept="" response type value completion
    read -ra words <<< "$line"
    number=$((${#words[@]} - 1))
    if [[ $line == *[[:space:]] ]]; then
        number=${#words[@]}
    else
        local word="${words[number]#*=}"
        [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && kept="${word%:*}:"
    fi
    response=$(env COMP_WORDS="$line" COMP_CWORD="$number" _LBAGENT_COMPLETE=bash_complete "$1")
    IFS=$'\n'
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        if [[ $type == dir ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == file ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == plain ]]; then
            COMPREPLY+=("${value#"$kept"}")
        fi
    done
}
complete -o nosort -F _lbagent_completion lbagent
"""


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the completion script of a shell. Use: `source <(lbagent completion bash)`."""
    if shell == "bash":
        click.echo(BASH, nl=False)
        return
    from click.shell_completion import get_completion_class

    from lbagent.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "lbagent", "_LBAGENT_COMPLETE").source())
