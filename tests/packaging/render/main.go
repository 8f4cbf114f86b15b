// Renders what deploy/ installs, as its tools do it: `render kustomize DIR`, `render helm CHART [VALUES.yaml]`.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if len(os.Args) < 3 {
		fail(fmt.Errorf("usage: render kustomize DIR | render helm CHART [VALUES.yaml]"))
	}
	if os.Args[1] == "kustomize" {
		kustomize(os.Args[2])
		return
	}
	helm(os.Args[2], os.Args[3:])
}

func kustomize(folder string) {
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	fail(err)
	text, err := objects.AsYaml()
	fail(err)
	os.Stdout.Write(text)
}

// helm prints the objects of crds/ and of templates/, as `helm install` in kube-system makes them.
func helm(folder string, files []string) {
	chart, err := loader.LoadDir(folder)
	fail(err)
	values := chartutil.Values{}
	for _, file := range files {
		values, err = chartutil.ReadValuesFile(file)
		fail(err)
	}
	release := chartutil.ReleaseOptions{Name: "lbagent", Namespace: "kube-system", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	fail(err)
	texts, err := engine.Render(chart, all)
	fail(err)
	for _, crd := range chart.CRDObjects() {
		fmt.Printf("---\n%s\n", crd.File.Data)
	}
	names := make([]string, 0, len(texts))
	for name := range texts {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Printf("---\n%s\n", texts[name])
		}
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
