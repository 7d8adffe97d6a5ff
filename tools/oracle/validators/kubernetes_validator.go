package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	sigsjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

type fault struct {
	Path    string `json:"path"`
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

type definition struct {
	namespaced bool
	preserve   bool
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	cel        *cel.Validator
}

type request struct {
	ID    string            `json:"id"`
	Files map[string]string `json:"files"`
}

type verdict struct {
	ID       string  `json:"id"`
	Accepted bool    `json:"accepted"`
	Faults   []fault `json:"faults"`
}

func main() {
	definitions := map[string]*definition{}
	groupKinds := map[string][]string{}
	for _, folder := range os.Args[1:] {
		files, _ := filepath.Glob(filepath.Join(folder, "*.yaml"))
		for _, file := range files {
			if err := load(file, definitions, groupKinds); err != nil {
				fmt.Fprintln(os.Stderr, file, err)
				os.Exit(2)
			}
		}
	}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 1 {
			var r request
			if err := json.Unmarshal(line, &r); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(2)
			}
			v := verdict{ID: r.ID, Faults: []fault{}}
			for _, text := range r.Files {
				for _, part := range strings.Split("\n"+text, "\n---\n") {
					if strings.TrimSpace(part) != "" {
						v.Faults = append(v.Faults, judge(part, definitions, groupKinds)...)
					}
				}
			}
			v.Accepted = len(v.Faults) == 0
			out.Encode(v)
		}
		if err != nil {
			return
		}
	}
}

func load(file string, definitions map[string]*definition, groupKinds map[string][]string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for _, part := range bytes.Split(append([]byte("\n"), text...), []byte("\n---\n")) {
		var head struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(part, &head); err != nil || head.Kind != "CustomResourceDefinition" {
			continue
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(part, &crd); err != nil {
			return err
		}
		for i := range crd.Spec.Versions {
			version := crd.Spec.Versions[i]
			if !version.Served || version.Schema == nil {
				continue
			}
			internal := &apiextensions.CustomResourceValidation{}
			if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, internal, nil); err != nil {
				return err
			}
			s, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
			if err != nil {
				return err
			}
			if err := structuraldefaulting.PruneDefaults(s); err != nil {
				return err
			}
			v, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
			if err != nil {
				return err
			}
			d := &definition{
				namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
				preserve:   crd.Spec.PreserveUnknownFields,
				structural: s, schema: v,
				cel: cel.NewValidator(s, true, celconfig.PerCallLimit),
			}
			definitions[crd.Spec.Group+"/"+version.Name+"/"+crd.Spec.Names.Kind] = d
			groupKinds[crd.Spec.Names.Kind] = append(groupKinds[crd.Spec.Names.Kind], crd.Spec.Group+"/"+version.Name)
		}
	}
	return nil
}

func one(path, kind, message string) []fault { return []fault{{path, kind, message}} }

func judge(text string, definitions map[string]*definition, groupKinds map[string][]string) (faults []fault) {
	asJSON, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		return one("", "Decode", err.Error())
	}
	object := map[string]interface{}{}
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(asJSON, &object); err != nil {
		return one("", "Decode", err.Error())
	}
	apiVersion, _, err := unstructured.NestedString(object, "apiVersion")
	if err != nil {
		return one("apiVersion", "Decode", err.Error())
	}
	kind, _, err := unstructured.NestedString(object, "kind")
	if err != nil {
		return one("kind", "Decode", err.Error())
	}
	d := definitions[apiVersion+"/"+kind]
	if d == nil {
		if _, known := groupKinds[kind]; known || strings.Contains(apiVersion, ".") {
			return one("apiVersion", "NoMatch", fmt.Sprintf("no matches for kind %q in version %q", kind, apiVersion))
		}
		return nil // a kind of Kubernetes itself
	}
	u := &unstructured.Unstructured{Object: object}
	structuraldefaulting.Default(object, d.structural)
	meta, foundMeta, unknown, err := objectmeta.GetObjectMetaWithOptions(object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil {
		return one("metadata", "Decode", err.Error())
	}
	if !d.preserve {
		unknown = append(unknown, pruning.PruneWithOptions(object, d.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})...)
		structuraldefaulting.PruneNonNullableNullsWithoutDefaults(object, d.structural)
	}
	coerceErr, more := objectmeta.CoerceWithOptions(nil, object, d.structural, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
	if coerceErr != nil {
		return one(coerceErr.Field, "Decode", coerceErr.Error())
	}
	for _, path := range append(unknown, more...) {
		faults = append(faults, fault{path, "Unknown", fmt.Sprintf("strict decoding error: unknown field %q", path)})
	}
	u.SetKind(kind)
	u.SetAPIVersion(apiVersion)
	if foundMeta {
		if err := objectmeta.SetObjectMeta(object, meta); err != nil {
			return one("metadata", "Decode", err.Error())
		}
	}
	if d.namespaced && u.GetNamespace() == "" {
		u.SetNamespace("default")
	}
	var errs field.ErrorList
	errs = append(errs, apivalidation.ValidateObjectMetaAccessor(u, d.namespaced, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
	errs = append(errs, validation.ValidateCustomResource(nil, object, d.schema)...)
	errs = append(errs, objectmeta.Validate(nil, object, d.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, d.structural, object)...)
	blocking := false
	for _, e := range errs {
		if e.Type == field.ErrorTypeNotSupported || e.Type == field.ErrorTypeRequired || e.Type == field.ErrorTypeTooLong || e.Type == field.ErrorTypeTooMany || e.Type == field.ErrorTypeTypeInvalid {
			blocking = true
		}
	}
	if d.cel != nil && !blocking {
		more, _ := d.cel.Validate(context.TODO(), nil, d.structural, object, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, more...)
	}
	for _, e := range errs {
		faults = append(faults, fault{e.Field, string(e.Type), e.Error()})
	}
	return faults
}
