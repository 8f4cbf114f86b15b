"""Examples of each command, for the reference and the man pages. tests/docs/test_reference.py checks words and flags."""

from __future__ import annotations

# the words after `lbagent` -> (command line, its effect)
EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("lbagent status", "Show whether the agent is ready, and what is wrong."),
        ("lbagent svc list", "List the frontends in the maps."),
    ),
    "agent": (
        (
            "lbagent agent --manifests /etc/lbagent/manifests --device eth0 --pod-device 'veth*'",
            "Serve the manifests of a folder on eth0.",
        ),
        ("lbagent agent --config /etc/lbagent/lbagent.yaml", "Take the settings from a file."),
        ("lbagent agent --kubeconfig /etc/lbagent/kubeconfig --device auto", "Serve a Kubernetes cluster."),
    ),
    "explain": (
        ("lbagent explain 198.51.100.7:40000 10.96.0.10:80", "Show what happens to a client's SYN, and why."),
        (
            "lbagent explain 198.51.100.7:40000 10.96.0.10:53/udp -o json --expect forward",
            "The same as JSON; fail unless it is forwarded.",
        ),
        (
            "lbagent explain 198.51.100.7:40000 10.96.0.10:80 -f manifests",
            "Answer under manifests that are not applied yet.",
        ),
        ("lbagent explain --pcap frames.pcap --device eth0", "Explain the frames of a capture."),
    ),
    "svc": (("lbagent svc list", "List all frontends."),),
    "svc list": (
        ("lbagent svc list -n shop", "List the frontends of a namespace."),
        ("lbagent svc list -o wide --watch", "Show all columns, and follow changes."),
    ),
    "svc get": (
        ("lbagent svc get shop/web", "Show the frontends and backends of a Service."),
        ("lbagent svc get 10.96.0.10", "Show what is behind an address."),
    ),
    "backend": (("lbagent backend list", "List all backends."),),
    "backend get": (("lbagent backend get 10.0.1.3:8080", "Show a backend, with a histogram of its handshakes."),),
    "backend list": (("lbagent backend list --service shop/web", "List the backends of a Service."),),
    "backend set-state": (
        (
            "lbagent backend set-state maintenance 10.0.1.3:8080",
            "Send no new flows to a backend; running flows continue.",
        ),
        ("lbagent backend set-state quarantined --node node-b --yes", "Quarantine every backend of a node."),
    ),
    "backend clear-state": (("lbagent backend clear-state 10.0.1.3:8080", "Let the manifests decide again."),),
    "backend drain": (
        ("lbagent backend drain pod/shop/web-0", "Drain every backend of a Pod; wait for its last flow."),
        ("lbagent backend drain --node node-b --timeout 10m", "Drain a node, for at most ten minutes."),
        (
            "lbagent backend drain 10.0.1.3:8080 --timeout 5m --then reset -o json",
            "Print each change as JSON; reset what is left after five minutes.",
        ),
    ),
    "backend rebalance": (
        ("lbagent backend rebalance shop/web --dry-run", "Print which backends have too many flows; reset none."),
        ("lbagent backend rebalance shop/web --to-within 20% --rate 5", "Reset at most five flows a second."),
    ),
    "node": (("lbagent node drain node-b", "Drain every backend of a node."),),
    "node drain": (
        ("lbagent node drain node-b --timeout 10m --then reset", "Drain a node; reset what is left after ten minutes."),
    ),
    "flow": (("lbagent flow list", "List all flows."),),
    "flow list": (
        ("lbagent flow list --backend 10.0.1.3:8080 -o wide", "List the flows of a backend, with all columns."),
        ("lbagent flow list --service shop/web --idle-over 10m -o json", "List a Service's idle flows as JSON."),
    ),
    "flow get": (("lbagent flow get 192.0.2.7:40312 10.96.0.10:80", "Show one flow."),),
    "flow count": (
        ("lbagent flow count", "Count all flows."),
        ("lbagent flow count --service shop/web --by client --limit 10", "Show the ten clients with most flows."),
    ),
    "flow delete": (
        ("lbagent flow delete --backend 10.0.1.3:8080 --reset", "Reset the connections to a backend."),
        ("lbagent flow delete --client 192.0.2.0/24 --idle-over 1h --dry-run", "Show how many flows would be deleted."),
    ),
    "map": (("lbagent map dump", "Print the entries of the maps."),),
    "map dump": (("lbagent map dump -o json", "Print the entries of the maps as JSON."),),
    "renderers": (
        ("lbagent renderers", "List the data planes, and why one is not available."),
        ("lbagent renderers -o json", "Print the same as JSON."),
    ),
    "status": (
        ("lbagent status --wait 30s", "Wait until the agent is ready."),
        ("lbagent status -o json", "Print every field as JSON."),
    ),
    "render": (
        (
            "lbagent render -f examples/demo | nft -c -f -",
            "Print the nftables rules of these manifests, and check them.",
        ),
        ("lbagent render -f DIR --node NAME --node-ip IP -o json", "Print them as libnftables' JSON."),
    ),
    "top": (
        ("lbagent top", "Show the busiest services; b shows backends, d drops, q ends."),
        ("lbagent top --batch -n 1 --interval 10 -o json", "Print the rates of ten seconds as JSON."),
    ),
    "ui": (
        ("lbagent ui", "Serve the page at http://127.0.0.1:9191/."),
        ("lbagent ui --listen 192.0.2.1:8080 --ui-host lb.example.org", "Serve it to other hosts, also by this name."),
    ),
    "monitor": (
        ("lbagent monitor --last 20 --verdict drop", "Show the last 20 drops, and new ones as they happen."),
        ("lbagent monitor --service shop/web --event-sample 1 -o json", "Show every new flow of a Service as JSON."),
    ),
    "capture": (
        ("lbagent capture --client 192.0.2.7", "Show the packets of a client."),
        (
            "lbagent capture --service shop/web -w web.pcapng --count 100",
            "Write 100 packets of a Service for Wireshark.",
        ),
    ),
    "record": (("lbagent record dump -o node.tar.gz", "Write what a bug report needs into one file."),),
    "record dump": (
        ("lbagent record dump -o node.tar.gz", "Write what a bug report needs into one file."),
        ("lbagent record dump -o node.tar.gz --redact", "Write it without addresses of clients."),
    ),
    "history": (
        ("lbagent history -n 5", "Show what caused the last five generations."),
        ("lbagent history -n 0 -o json", "Print all that are kept as JSON."),
    ),
    "plan": (
        ("lbagent plan -f examples/demo -o dump", "Print the map entries of these manifests."),
        ("lbagent plan -f DIR --live --max-lost 1%", "Show what they change, and fail where more flows would be lost."),
        (
            "lbagent plan -f DIR -o dump --ids-from-maps | diff - <(lbagent map dump)",
            "Compare manifests with the maps.",
        ),
    ),
    "cloud": (("lbagent cloud providers", "List the providers."),),
    "cloud run": (
        ("lbagent cloud run --provider pool --config pools.yaml --in-cluster", "Run the controller in a Pod."),
    ),
    "cloud plan": (
        ("lbagent cloud plan -f DIR --provider pool --config pools.yaml", "Show which Service gets which address."),
    ),
    "cloud pools": (("lbagent cloud pools --config pools.yaml -f DIR", "Show how full the pools are."),),
    "cloud providers": (("lbagent cloud providers -o json", "List the providers as JSON."),),
    "apilb": (("lbagent apilb plan -f apilb.yaml", "Show what `apply` would change."),),
    "apilb show": (("lbagent apilb show -f apilb.yaml", "Show each instance with its settings."),),
    "apilb render": (("lbagent apilb render -f apilb.yaml", "Print haproxy.cfg."),),
    "apilb plan": (("lbagent apilb plan -f apilb.yaml", "Compare the file with the hosts."),),
    "apilb apply": (("lbagent apilb apply -f apilb.yaml --yes", "Change the hosts without a question."),),
    "apilb destroy": (("lbagent apilb destroy -f apilb.yaml", "Remove containers and files from the hosts."),),
    "apilb export": (("lbagent apilb export -f apilb.yaml", "Print the state, for flexkube."),),
    "apilb status": (("lbagent apilb status -f apilb.yaml", "Show which servers are up."),),
    "vip": (("lbagent vip list", "List the announced addresses."),),
    "vip list": (("lbagent vip list -o json", "List the announced addresses as JSON."),),
    "vip why": (("lbagent vip why shop/web", "Explain why a Service's address is announced or not."),),
    "bgp": (("lbagent bgp peers", "List the BGP sessions."),),
    "bgp peers": (("lbagent bgp peers -o json", "List the BGP sessions as JSON."),),
    "verify": (
        ("lbagent verify", "Compare the data planes with what was written; exit code 1 if one differs."),
        ("lbagent verify --api", "List the cluster's objects again, and compare the data planes with these."),
        ("lbagent verify --renderer kube-proxy", "Compare kube-proxy's nftables rules with the agent's objects."),
        ("lbagent verify --renderer nftables -f manifests --repair", "Compare a table with manifests, and repair it."),
    ),
    "shadow": (("lbagent shadow report", "Show what another proxy decides differently."),),
    "shadow report": (("lbagent shadow report -o json --reset", "Print the report as JSON, and begin again."),),
    "migrate": (
        ("lbagent migrate --from kube-proxy", "Show what differs, and the plan. Nothing is changed."),
        ("lbagent migrate --from kube-proxy --yes --renderer nftables", "Take over this node's Services."),
        ("lbagent migrate --from kube-proxy --back", "Give them back."),
    ),
    "doctor": (
        ("lbagent doctor --device eth0", "Show what this machine supports."),
        ("lbagent doctor --kubernetes", "Look for rules of kube-proxy too."),
    ),
    "bpf": (("lbagent bpf build", "Compile the programs."),),
    "bpf build": (("lbagent bpf build --check", "Compile, and print the verifier's figures."),),
    "config": (("lbagent config show", "Print the settings in force."),),
    "config check": (
        ("lbagent config check --config /etc/lbagent/lbagent.yaml", "Check a configuration before a restart."),
    ),
    "config show": (("lbagent config show -o yaml", "Print a file for --config."),),
    "metrics": (("lbagent metrics", "Print the metrics."),),
    "cleanup": (("lbagent cleanup", "Remove what an agent left in the kernel."),),
    "completion": (("source <(lbagent completion bash)", "Complete commands in this shell."),),
}
